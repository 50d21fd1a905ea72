//! The load of a step: how its calls on tensor cores slow all calls at the power limit.

use serde::{Deserialize, Serialize};

use crate::call_size::CallSize;

/// `[load]`: how much longer calls take in steps that use tensor cores more, because a GPU at its power limit
/// lowers its clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// FLOP/s on tensor cores of a step above which calls are slower than described. Below, the GPU has its
    /// highest clock. FLOPs in FP8 and of attention count less.
    pub flops: f64,
    /// Logarithm of the ratio of attention's times in a step with 1e15 FLOP/s more.
    pub attention: f64,
    /// Logarithm of the ratio of the times of matmuls for outputs and for gradients of inputs, in a step with
    /// 1e15 FLOP/s more.
    pub matmul: f64,
    /// Logarithm of the ratio of the times of weights' gradients in a step with 1e15 FLOP/s more.
    pub weight_gradient: f64,
    /// Logarithm of the ratio of the times of other kernels, convolutions, and matmuls in FP8 and f32, in a
    /// step with 1e15 FLOP/s more.
    pub others: f64,
}

/// Calls that a step's load slows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Attention in half types.
    Attention,
    /// Matmuls of outputs and of gradients of inputs, in half types and TF32, and of experts.
    Matmul,
    /// Matmuls of weights' gradients, in half types and TF32.
    WeightGradient,
    /// Other kernels, convolutions, and matmuls in FP8 and f32.
    Other,
}

impl Loaded {
    /// All values, in order.
    const ALL: [Loaded; 4] = [Loaded::Attention, Loaded::Matmul, Loaded::WeightGradient, Loaded::Other];
    /// Number of values.
    pub(crate) const COUNT: usize = Self::ALL.len();
}

impl Load {
    /// The load of a new description. The dependence was measured on H200s (`benches/notes/predictions.md`).
    pub const TYPICAL: Load =
        Load { flops: 350e12, attention: 0.6, matmul: 0.6, weight_gradient: 0.35, others: 0.25 };

    /// Returns the ratio of the times of calls in a step with `flops` FLOP/s on tensor cores to the described
    /// times.
    #[must_use]
    pub fn ratio(&self, calls: Loaded, flops: f64) -> f64 {
        let slower = match calls {
            Loaded::Attention => self.attention,
            Loaded::Matmul => self.matmul,
            Loaded::WeightGradient => self.weight_gradient,
            Loaded::Other => self.others,
        };
        (slower * (flops - self.flops).max(0.0) / 1e15).exp()
    }

    /// Returns the ratios of [`Load::ratio`] for a step that has `flops` FLOPs on tensor cores, whose calls
    /// of each kind take `seconds` by their described times, and whose other calls take `rest`.
    #[must_use]
    pub fn settled(&self, flops: f64, seconds: [f64; Loaded::COUNT], rest: f64) -> [f64; Loaded::COUNT] {
        let mut ratios = [1.0; Loaded::COUNT];
        // A slower clock means fewer FLOP/s, so few rounds suffice.
        for _ in 0..SETTLING {
            let longer = seconds.iter().zip(ratios).fold(rest, |sum, (seconds, ratio)| sum + ratio * seconds);
            if longer > 0.0 {
                ratios = Loaded::ALL.map(|calls| self.ratio(calls, flops / longer));
            }
        }
        ratios
    }

    /// Iterates over all values, which must be above 0.
    pub(crate) fn all(&self) -> impl Iterator<Item = f64> {
        [self.flops, self.attention, self.matmul, self.weight_gradient, self.others].into_iter()
    }
}

/// Rounds in which the speed and the load of a step settle.
const SETTLING: usize = 12;

/// Load of a FLOP in FP8, and of one of attention, as a part of a matmul's in half types: the values that fit
/// steps at the power limit best.
const FP8_LOAD: f64 = 0.65;
const ATTENTION_LOAD: f64 = 0.8;

/// Family of the kernels for experts that use tensor cores.
const EXPERTS: &str = "experts_hopper.";

impl CallSize {
    /// Returns the seconds that a call takes by a description with this load, if it takes `seconds` in a step
    /// with `flops` FLOP/s on tensor cores.
    #[must_use]
    pub fn at_load(&self, seconds: f64, load: &Load, flops: f64) -> f64 {
        self.loaded().map_or(seconds, |calls| seconds / load.ratio(calls, flops))
    }

    /// Returns how the load of a step slows this call; `None` for copies and communication.
    #[must_use]
    pub fn loaded(&self) -> Option<Loaded> {
        let uses_tensor_cores = self.tensor_core_flops() > 0.0 && !self.is_fp8();
        Some(match self.kind.split_whitespace().take(2).collect::<Vec<_>>()[..] {
            ["matmul", "tn"] if uses_tensor_cores => Loaded::WeightGradient,
            ["matmul", _] if uses_tensor_cores => Loaded::Matmul,
            ["matmul" | "convolution", _] => Loaded::Other,
            [kernel, _] if kernel.starts_with(EXPERTS) => Loaded::Matmul,
            [kernel, _] if kernel.contains('.') && uses_tensor_cores => Loaded::Attention,
            [kernel, _] if kernel.contains('.') => Loaded::Other,
            _ => return None,
        })
    }

    /// Returns the FLOPs of the call on tensor cores, as the load of a step counts them: weighted by the
    /// power that they draw. 0 for calls that do not use tensor cores. Of kernels, only attention in half
    /// types and experts on Hopper are counted.
    #[must_use]
    pub fn tensor_core_flops(&self) -> f64 {
        let [a, b, c] = self.size;
        let is_plain_f32 = || self.kind.contains(" f32,f32,f32 ") && !self.kind.contains(" tf32");
        let is_half_attention = || self.kind.starts_with("attention") && !self.kind.contains("f32");
        match () {
            () if self.kind.starts_with("matmul ") => match () {
                () if is_plain_f32() => 0.0,
                () if self.is_fp8() => FP8_LOAD * 2.0 * a * b * c,
                () => 2.0 * a * b * c,
            },
            () if is_half_attention() => ATTENTION_LOAD * c,
            () if self.kind.starts_with(EXPERTS) => c,
            () => 0.0,
        }
    }

    /// Returns whether the call is a matmul in FP8.
    fn is_fp8(&self) -> bool {
        ["e4m3,", "e5m2,"].iter().any(|operand| self.kind.contains(operand))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_more_flops_are_slower() {
        let load = Load::TYPICAL;
        assert_eq!(load.ratio(Loaded::Matmul, load.flops), 1.0);
        assert_eq!(load.settled(0.0, [0.0; 4], 0.0), [1.0; 4]);
        // A step of 500 TFLOP/s at described times has fewer at the lower clock that follows.
        let seconds = [0.1, 0.5, 0.2, 0.1];
        let ratios @ [attention, matmul, weight, other] = load.settled(500e12, seconds, 0.1);
        assert!(1.0 < other && other < weight && weight < matmul && matmul <= attention, "{ratios:?}");
        assert!(1.03 < matmul && matmul < load.ratio(Loaded::Matmul, 500e12), "{matmul}");
        let flops = 500e12 / (0.1 + 0.1 * attention + 0.5 * matmul + 0.2 * weight + 0.1 * other);
        for (calls, ratio) in Loaded::ALL.into_iter().zip(ratios) {
            assert!((ratio / load.ratio(calls, flops) - 1.0).abs() < 1e-6, "{ratio}");
        }
        assert_eq!(load.settled(300e12, seconds, 0.1), [1.0; 4]);
    }
}
