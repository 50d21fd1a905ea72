//! Element-wise activations.
//!
//! GELU has three forms. The tanh form of Hendrycks and Gimpel (*Gaussian Error Linear Units*, 2016) is
//! x/2·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³). It is computed as x·σ(2u), which is equal and stays
//! accurate where tanh u is near −1. Their sigmoid form is coarser: x·σ(1.702·x). The third form is the
//! definition by the error function.

mod functions;

use device::parallel::{CHUNK, for_pieces, simd};
use device::{Backend, Category, Family, Function, Request};

use super::elementwise::{self, Each};
use super::kernels::family;
use super::{check, rows};
use crate::{Result, Tensor};
pub(crate) use functions::{Elementary, Gelu, GeluErf, Identity, QuickGelu, Relu, ReluSquared, Silu};

pub(super) static FAMILY: Family = family!(
    "activation",
    headers: ["activation.cuh", "elementwise.cuh"],
    constants: elementwise::CONSTANTS,
);

device::names! {
    /// An element-wise function of a layer's output.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Activation {
        /// The identity.
        #[default]
        None = "none",
        /// max(x, 0).
        Relu = "relu",
        /// max(x, 0)².
        ReluSquared = "relu-squared",
        /// x·σ(x), the sigmoid linear unit.
        Silu = "silu",
        /// The Gaussian error linear unit, tanh form.
        Gelu = "gelu",
        /// The Gaussian error linear unit, by the error function.
        GeluErf = "gelu-erf",
        /// The Gaussian error linear unit, sigmoid form: x·σ(1.702·x).
        QuickGelu = "quick-gelu",
    }
}

/// Evaluates an expression with `$function` as the type of an [`Activation`]'s function on the host.
macro_rules! with_function {
    ($activation:expr, $function:ident => $body:expr) => {
        match $activation {
            $crate::ops::Activation::None => {
                type $function = $crate::ops::activation::Identity;
                $body
            }
            $crate::ops::Activation::Relu => {
                type $function = $crate::ops::activation::Relu;
                $body
            }
            $crate::ops::Activation::ReluSquared => {
                type $function = $crate::ops::activation::ReluSquared;
                $body
            }
            $crate::ops::Activation::Silu => {
                type $function = $crate::ops::activation::Silu;
                $body
            }
            $crate::ops::Activation::Gelu => {
                type $function = $crate::ops::activation::Gelu;
                $body
            }
            $crate::ops::Activation::GeluErf => {
                type $function = $crate::ops::activation::GeluErf;
                $body
            }
            $crate::ops::Activation::QuickGelu => {
                type $function = $crate::ops::activation::QuickGelu;
                $body
            }
        }
    };
}
pub(crate) use with_function;

impl Activation {
    /// Returns whether backward reads the input. ReLU reads the output, and the identity neither.
    pub const fn needs_input(self) -> bool {
        !matches!(self, Activation::None | Activation::Relu)
    }

    pub(super) const fn name_of_kernel(self) -> &'static str {
        match self {
            Activation::None => "identity",
            Activation::Relu => "relu",
            Activation::ReluSquared => "relu_squared",
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::GeluErf => "gelu_erf",
            Activation::QuickGelu => "quick_gelu",
        }
    }

    pub(super) const fn name_of_gradient(self) -> &'static str {
        match self {
            Activation::None => "identity_gradient",
            Activation::Relu => "relu_gradient",
            Activation::ReluSquared => "relu_squared_gradient",
            Activation::Silu => "silu_gradient",
            Activation::Gelu => "gelu_gradient",
            Activation::GeluErf => "gelu_erf_gradient",
            Activation::QuickGelu => "quick_gelu_gradient",
        }
    }
}

/// Returns `activation(x)` for f32 or bf16 `x` of any shape; for `None`, `x` itself.
pub fn forward(x: &Tensor, activation: Activation) -> Result<Tensor> {
    const OPERATOR: &str = "activation.forward";
    let dtype = check::computed(OPERATOR, &[("x", x)])?;
    if activation == Activation::None {
        return Ok(x.clone());
    }
    let output = x.like(dtype, Request::new(Category::Activation, OPERATOR))?;
    apply(x, &output, activation)?;
    Ok(output)
}

/// Computes the gradient of the activation's input, `dy · activation'`.
///
/// `saved` is the output for ReLU and the input for all others, of the shape and type of `dy`. The result
/// overwrites `dy` if no other view of its storage exists, and else is a new tensor; for `None` it is `dy`
/// itself.
pub fn backward(dy: Tensor, saved: &Tensor, activation: Activation) -> Result<Tensor> {
    const OPERATOR: &str = "activation.backward";
    let dtype = check::computed(OPERATOR, &[("dy", &dy), ("saved", saved)])?;
    check::shape(OPERATOR, "saved", saved, dy.shape())?;
    if activation == Activation::None {
        return Ok(dy);
    }
    if dy.is_unique() {
        apply_gradient(None, saved, &dy, activation)?;
        return Ok(dy.with_maxima(None));
    }
    let dx = dy.like(dtype, Request::new(Category::ActivationGradient, OPERATOR))?;
    apply_gradient(Some(&dy), saved, &dx, activation)?;
    Ok(dx)
}

/// Writes activation(x) to `out`.
pub(super) fn apply(x: &Tensor, out: &Tensor, activation: Activation) -> Result<()> {
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => apply_on_host(&x.values()?, &mut out.values_mut()?, activation),
        Backend::Cuda if activation == Activation::None => out.copy_from(x)?,
        Backend::Cuda => {
            let kernel = Function::new(&FAMILY, activation.name_of_kernel()).with_dtype(out.dtype());
            Each { kernel, read: &[x], write: out, updates: false, number: None }.launch()?;
        }
    }
    Ok(())
}

/// Writes dy · activation' to `out`; without `dy`, multiplies `out` itself.
fn apply_gradient(dy: Option<&Tensor>, saved: &Tensor, out: &Tensor, activation: Activation) -> Result<()> {
    match out.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy = dy.map(Tensor::values).transpose()?;
            gradient_on_host(dy.as_deref(), &saved.values()?, &mut out.values_mut()?, activation);
        }
        Backend::Cuda => {
            let kernel = Function::new(&FAMILY, activation.name_of_gradient()).with_dtype(out.dtype());
            let read = [dy.unwrap_or(out), saved];
            Each { kernel, read: &read, write: out, updates: false, number: None }.launch()?;
        }
    }
    Ok(())
}

fn apply_on_host(x: &[f32], out: &mut [f32], activation: Activation) {
    for_pieces(out, CHUNK, |index, out| {
        let pairs = out.iter_mut().zip(rows::piece(x, index, CHUNK));
        with_function!(activation, F => simd(|| pairs.for_each(|(out, x)| *out = F::value(*x))));
    });
}

fn gradient_on_host(dy: Option<&[f32]>, saved: &[f32], out: &mut [f32], activation: Activation) {
    for_pieces(out, CHUNK, |index, out| {
        if let Some(dy) = dy {
            out.copy_from_slice(rows::piece(dy, index, CHUNK));
        }
        let pairs = out.iter_mut().zip(rows::piece(saved, index, CHUNK));
        with_function!(activation, F => simd(|| {
            pairs.for_each(|(out, saved)| *out = F::gradient(*out, *saved));
        }));
    });
}
