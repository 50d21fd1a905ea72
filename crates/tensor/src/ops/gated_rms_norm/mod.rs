//! RMS normalisation of each head of a row, times a gate, as after the gated delta rule.
//!
//! y = x · rstd · weight · f(z), where rstd is 1/√(mean of x² + epsilon) of a head. Backward computes rstd
//! again.

mod cpu;
pub(crate) mod cuda;

use device::{Backend, Category, DType, Request};

use super::{GradientTarget, check};
use crate::{Result, Tensor};

device::names! {
    /// Function of the gate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GateFunction {
        /// z · sigmoid(z).
        Silu = "silu",
        /// sigmoid(z).
        Sigmoid = "sigmoid",
    }
}

/// Operands of the norm, all of one type: rows of heads, as wide as the weight.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// The input, `[batch, time, columns]`.
    pub x: &'a Tensor,
    /// Gates before their function, of the input's shape.
    pub z: &'a Tensor,
    /// Weight of every head, `[width]`.
    pub weight: &'a Tensor,
}

/// Options of the norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Number added to the mean squares.
    pub epsilon: f32,
    /// Function of the gates.
    pub function: GateFunction,
}

/// Gradients of the inputs, and partial sums of the weight's gradient.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Gradient of the input.
    pub x: Tensor,
    /// Gradient of the gates before their function.
    pub z: Tensor,
    /// Sums of the weight's gradient over runs of rows, `[runs, width]` f32.
    pub sums: Tensor,
}

/// Width of the widest head: partial sums of a block must fit into 48 KiB of shared memory.
const WIDEST: usize = 1024;
/// Minimum number of heads that one block of threads adds.
const ROWS: usize = 8;
/// Maximum number of runs of heads.
const RUNS: usize = 512;

/// Returns the number of runs into which heads are divided, one per GPU block or host task; at least 1.
fn runs(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, RUNS)
}

impl Operands<'_> {
    /// Returns the number of heads of all rows, their width, and the type.
    fn check(&self, operator: &'static str) -> Result<([usize; 2], DType)> {
        let Operands { x, z, weight } = *self;
        let dtype = check::computed(operator, &[("x", x), ("z", z), ("weight", weight)])?;
        check::not_empty(operator, "x", x)?;
        check::shape(operator, "z", z, x.shape())?;
        check::rank(operator, "weight", weight, 1)?;
        let width = weight.elements();
        if width > WIDEST || !x.shape().columns().is_multiple_of(width) {
            return Err(check::wrong(
                operator,
                "x",
                x,
                format!("heads of {width} columns, at most {WIDEST}"),
            ));
        }
        Ok(([x.elements() / width, width], dtype))
    }
}

/// Normalises and gates each head.
///
/// # Errors
/// Shapes or types that do not agree, heads of more than 1,024 columns, out of memory.
pub fn forward(operands: Operands<'_>, settings: Settings) -> Result<Tensor> {
    const OPERATOR: &str = "gated_rms_norm.forward";
    let (sizes, dtype) = operands.check(OPERATOR)?;
    let y = operands.x.like(dtype, Request::new(Category::Activation, OPERATOR))?;
    match operands.x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(operands, settings, &y)?,
        Backend::Cuda => cuda::forward(OPERATOR, operands, sizes, settings, &y)?,
    }
    Ok(y)
}

/// Computes the gradients of `x` and `z` from the output's gradient, and partial sums of the weight's.
pub fn backward_input(dy: &Tensor, operands: Operands<'_>, settings: Settings) -> Result<Gradients> {
    const OPERATOR: &str = "gated_rms_norm.backward_input";
    let (sizes, dtype) = operands.check(OPERATOR)?;
    check::dtype(OPERATOR, "dy", dy, dtype)?;
    check::shape(OPERATOR, "dy", dy, operands.x.shape())?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let x = operands.x.like(dtype, request)?;
    let z = operands.x.like(dtype, request)?;
    let sums = Tensor::empty(dy.device(), [runs(sizes[0]), sizes[1]], DType::F32, request)?;
    let gradients = Gradients { x, z, sums };
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward_input(dy, operands, sizes, settings, &gradients)?,
        Backend::Cuda => cuda::backward_input(OPERATOR, dy, operands, sizes, settings, &gradients)?,
    }
    Ok(gradients)
}

/// Computes the weight's gradient from the partial sums of [`backward_input`]. The target is f32 or of
/// `computed`, the type of the activations.
pub fn backward_weight(sums: &Tensor, computed: DType, weight: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "gated_rms_norm.backward_weight";
    check::f32s(OPERATOR, &[("sums", sums)])?;
    check::rank(OPERATOR, "sums", sums, 2)?;
    check::targets(OPERATOR, computed, &[("weight", weight)])?;
    check::shape(OPERATOR, "weight", &weight.tensor, [sums.shape().columns()])?;
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_weight(sums, weight),
        Backend::Cuda => cuda::backward_weight(OPERATOR, sums, weight),
    }
}
