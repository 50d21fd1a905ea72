//! Element-wise functions and their derivatives on the host, equal to `kernels/activation.cuh`.

use crate::ops::math::exp;

/// A function of one element and its derivative.
pub(crate) trait Elementary {
    fn value(x: f32) -> f32;
    /// Returns `dy` times the derivative at `x`.
    fn gradient(dy: f32, x: f32) -> f32;
}

/// The identity.
pub(crate) struct Identity;

impl Elementary for Identity {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn gradient(dy: f32, _: f32) -> f32 {
        dy
    }
}

/// max(x, 0), NaN for NaN.
pub(crate) struct Relu;

impl Elementary for Relu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }

    /// Accepts the output as `x` too: input and output have the same sign.
    #[inline(always)]
    fn gradient(dy: f32, x: f32) -> f32 {
        if x > 0.0 { dy } else { 0.0 }
    }
}

/// max(x, 0)².
pub(crate) struct ReluSquared;

impl Elementary for ReluSquared {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x * x }
    }

    #[inline(always)]
    fn gradient(dy: f32, x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { dy * 2.0 * x }
    }
}

/// Largest exponent x for which e^x is computed, so that no later multiplication overflows. Larger exponents
/// give the same results.
const STEEPEST: f32 = 87.0;

/// Returns e^−x.
#[inline(always)]
fn decay(x: f32) -> f32 {
    exp(if -x > STEEPEST { STEEPEST } else { -x })
}

/// x·σ(x).
pub(crate) struct Silu;

impl Elementary for Silu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x / (1.0 + decay(x))
    }

    /// Returns dy times the derivative σ + x·σ·(1 − σ). 1 − σ is computed as e^−x·σ so that nothing cancels.
    #[inline(always)]
    fn gradient(dy: f32, x: f32) -> f32 {
        let decay = decay(x);
        let sigma = 1.0 / (1.0 + decay);
        dy * ((decay * sigma) * sigma).mul_add(x, sigma)
    }
}

/// GELU's sigmoid form, x·σ(1.702·x).
pub(crate) struct QuickGelu;

impl QuickGelu {
    const STEEPNESS: f32 = 1.702;
}

impl Elementary for QuickGelu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x / (1.0 + decay(Self::STEEPNESS * x))
    }

    /// Returns dy times the derivative σ + 1.702·x·σ·(1 − σ), with 1 − σ computed as in [`Silu`].
    #[inline(always)]
    fn gradient(dy: f32, x: f32) -> f32 {
        let decay = decay(Self::STEEPNESS * x);
        let sigma = 1.0 / (1.0 + decay);
        dy * ((decay * sigma) * sigma).mul_add(Self::STEEPNESS * x, sigma)
    }
}

/// 2·√(2/π).
const TWICE_ROOT: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

/// GELU's tanh form.
pub(crate) struct Gelu;

impl Gelu {
    /// Returns e^−2u, where u is the argument of GELU's tanh.
    #[inline(always)]
    fn decay(x: f32) -> f32 {
        decay(TWICE_ROOT * x * (CUBIC * x).mul_add(x, 1.0))
    }
}

impl Elementary for Gelu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x / (1.0 + Self::decay(x))
    }

    /// Returns dy times the derivative σ(2u) + x·σ(2u)·(1 − σ(2u))·2u'. 1 − σ is computed as e^−2u·σ so that
    /// nothing cancels.
    #[inline(always)]
    fn gradient(dy: f32, x: f32) -> f32 {
        let decay = Self::decay(x);
        let sigma = 1.0 / (1.0 + decay);
        let steepness = TWICE_ROOT * (3.0 * CUBIC * x).mul_add(x, 1.0);
        dy * ((decay * sigma) * sigma * x).mul_add(steepness, sigma)
    }
}

/// GELU by its definition: x·Φ(x), with the normal distribution function Φ.
pub(crate) struct GeluErf;

impl GeluErf {
    /// Returns Φ(x), computed by erfc so that it stays accurate far below 0.
    #[inline(always)]
    fn probability(x: f32) -> f32 {
        0.5 * libm::erfcf(-x * std::f32::consts::FRAC_1_SQRT_2)
    }
}

impl Elementary for GeluErf {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x * Self::probability(x)
    }

    #[inline(always)]
    fn gradient(dy: f32, x: f32) -> f32 {
        /// 1/√(2π).
        const DENSITY: f32 = 0.398_942_3;
        dy * (x * DENSITY).mul_add(exp(-0.5 * x * x), Self::probability(x))
    }
}
