//! Element-wise activations.
//!
//! GELU is the tanh form of Hendrycks and Gimpel (*Gaussian Error Linear Units*, 2016),
//! x/2·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), computed as x·σ(2u), which is the same and keeps its
//! relative accuracy where tanh u is near −1.

use device::parallel::{CHUNK, for_pieces, simd};
use device::{Backend, Category, Family, Function, Request};

use super::elementwise::{self, Each};
use super::kernels::family;
use super::math::exp;
use super::{check, rows};
use crate::{Result, Tensor};

/// `kernels/activation.cu`.
pub(super) static FAMILY: Family =
    family!("activation", headers: ["elementwise.cuh"], constants: elementwise::CONSTANTS);

/// A function of each element of a layer's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// The Gaussian error linear unit, tanh form.
    Gelu,
}

impl Activation {
    /// Returns its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::None => "none",
            Activation::Relu => "relu",
            Activation::Gelu => "gelu",
        }
    }
}

/// `activation(x)` for f32 or bf16 `x` of any shape; `None` gives `x` itself. Errors: another type, out of
/// memory.
pub fn forward(x: &Tensor, activation: Activation) -> Result<Tensor> {
    const OPERATOR: &str = "activation.forward";
    let dtype = check::computed(OPERATOR, &[("x", x)])?;
    if activation == Activation::None {
        return Ok(x.clone());
    }
    let request = Request::new(Category::Activation, OPERATOR);
    let output = Tensor::empty(x.device(), x.shape(), dtype, request)?;
    apply(x, &output, activation)?;
    Ok(output)
}

/// The gradient of what the activation was applied to: `dy · activation'`. `saved` is the output for ReLU and
/// the input for GELU, of `dy`'s shape and type. Written over `dy` when nothing else looks at its storage,
/// else into a new tensor; `None` gives `dy` itself. Errors: shapes or types that do not agree, out of
/// memory.
pub fn backward(dy: Tensor, saved: &Tensor, activation: Activation) -> Result<Tensor> {
    const OPERATOR: &str = "activation.backward";
    let dtype = check::computed(OPERATOR, &[("dy", &dy), ("saved", saved)])?;
    check::shape(OPERATOR, "saved", saved, dy.shape())?;
    if activation == Activation::None {
        return Ok(dy);
    }
    if dy.is_unique() {
        apply_gradient(None, saved, &dy, activation)?;
        return Ok(dy);
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx = Tensor::empty(dy.device(), dy.shape(), dtype, request)?;
    apply_gradient(Some(&dy), saved, &dx, activation)?;
    Ok(dx)
}

/// out = activation(x), in memory that is allocated.
pub(super) fn apply(x: &Tensor, out: &Tensor, activation: Activation) -> Result<()> {
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => apply_on_host(&x.read()?, &mut out.write::<f32>()?, activation),
        Backend::Cuda => {
            let name = match activation {
                Activation::None => return out.copy_from(x),
                Activation::Relu => "relu",
                Activation::Gelu => "gelu",
            };
            let kernel = Function::new(&FAMILY, name).of(out.dtype());
            Each { kernel, read: &[x], write: out, updates: false, number: None }.launch()?;
        }
    }
    Ok(())
}

/// out = (dy, or out where there is none) · activation'.
fn apply_gradient(dy: Option<&Tensor>, saved: &Tensor, out: &Tensor, activation: Activation) -> Result<()> {
    match out.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy = dy.map(Tensor::read::<f32>).transpose()?;
            gradient_on_host(dy.as_deref(), &saved.read()?, &mut out.write::<f32>()?, activation);
        }
        Backend::Cuda => {
            let name = match activation {
                Activation::None => return Ok(()),
                Activation::Relu => "relu_gradient",
                Activation::Gelu => "gelu_gradient",
            };
            let kernel = Function::new(&FAMILY, name).of(out.dtype());
            let read = [dy.unwrap_or(out), saved];
            Each { kernel, read: &read, write: out, updates: false, number: None }.launch()?;
        }
    }
    Ok(())
}

fn apply_on_host(x: &[f32], out: &mut [f32], activation: Activation) {
    for_pieces(out, CHUNK, |index, out| {
        let x = rows::piece(x, index, CHUNK);
        match activation {
            Activation::None => out.copy_from_slice(x),
            Activation::Relu => simd(|| out.iter_mut().zip(x).for_each(|(out, x)| *out = relu(*x))),
            Activation::Gelu => simd(|| out.iter_mut().zip(x).for_each(|(out, x)| *out = gelu(*x))),
        }
    });
}

fn gradient_on_host(dy: Option<&[f32]>, saved: &[f32], out: &mut [f32], activation: Activation) {
    for_pieces(out, CHUNK, |index, out| {
        if let Some(dy) = dy {
            out.copy_from_slice(rows::piece(dy, index, CHUNK));
        }
        let saved = rows::piece(saved, index, CHUNK);
        let pairs = out.iter_mut().zip(saved);
        match activation {
            Activation::None => {}
            Activation::Relu => {
                simd(|| pairs.for_each(|(out, saved)| *out = if *saved > 0.0 { *out } else { 0.0 }));
            }
            Activation::Gelu => simd(|| pairs.for_each(|(out, saved)| *out *= gelu_slope(*saved))),
        }
    });
}

/// max(x, 0), NaN for NaN.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// 2·√(2/π).
const TWICE_ROOT: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;
/// e^−2u is cut off here, far beyond where it decides anything, so that no product with it overflows.
const STEEPEST: f32 = 87.0;

/// e^−2u.
#[inline(always)]
fn decay(x: f32) -> f32 {
    let exponent = -TWICE_ROOT * x * (CUBIC * x).mul_add(x, 1.0);
    exp(if exponent > STEEPEST { STEEPEST } else { exponent })
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    x / (1.0 + decay(x))
}

/// σ(2u) + x·σ(2u)·(1 − σ(2u))·2u', with 1 − σ as e^−2u·σ so that nothing cancels.
#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let decay = decay(x);
    let sigma = 1.0 / (1.0 + decay);
    let steepness = TWICE_ROOT * (3.0 * CUBIC * x).mul_add(x, 1.0);
    ((decay * sigma) * sigma * x).mul_add(steepness, sigma)
}
