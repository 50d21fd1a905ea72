//! Linear layers, y = activation(x · Wᵀ + b), with separate backward functions for input and weight.

mod cpu;
pub(crate) mod cuda;
mod ending;

use device::{Backend, Category, DType, Epilogue, Request, Work};

pub use super::activation::backward as backward_activation;
use super::activation::{self, Activation};
use super::{GradientTarget, check, columns};
use crate::{Result, Tensor};
pub use ending::Ending;
pub(super) use ending::{affine_ended, ended};

/// Result of [`forward`].
#[derive(Clone, Debug)]
pub struct Output {
    /// The output, `[.., out]`.
    pub output: Tensor,
    /// The output before the activation, if the activation's gradient needs it ([`Activation::needs_input`]).
    pub pre_activation: Option<Tensor>,
}

/// Computes a linear layer and its activation for `x [.., in]`, `weight [out, in]`, `bias [out]`, all f32 or
/// all bf16, giving `[.., out]`. ReLU overwrites the sums. If backward needs the activation's input, it is
/// allocated before the output.
pub fn forward(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Output> {
    const OPERATOR: &str = "linear.forward";
    if activation.needs_input() {
        let (pre_activation, output) = activated(OPERATOR, x, weight, bias, activation)?;
        return Ok(Output { output, pre_activation: Some(pre_activation) });
    }
    let output = plain(OPERATOR, x, weight, bias, activation == Activation::Relu)?;
    Ok(Output { output, pre_activation: None })
}

/// Allocates the output of a layer without activation and does not compute it, for recomputation, where
/// nothing reads it.
pub fn forward_again(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Output> {
    Ok(Output { output: allocate("linear.forward", x, weight, bias)?, pre_activation: None })
}

/// Returns x · Wᵀ + b. With `clip`, applies ReLU.
pub(super) fn plain(
    operator: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    clip: bool,
) -> Result<Tensor> {
    let output = allocate(operator, x, weight, bias)?;
    affine(x, weight, bias, clip, &output)?;
    Ok(output)
}

/// Computes output = x · Wᵀ + b. With `clip`, applies ReLU.
fn affine(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, clip: bool, output: &Tensor) -> Result<()> {
    count(x, weight);
    match x.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::affine(x, weight, bias, clip, output, false),
        Backend::Cuda => cuda::affine(x, weight, bias, clip, output),
    }
}

/// Returns x · Wᵀ + b and `activation` of it.
pub(super) fn activated(
    operator: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<(Tensor, Tensor)> {
    let pre_activation = allocate(operator, x, weight, bias)?;
    let request = Request::new(Category::Activation, operator);
    let output = Tensor::empty(x.device(), pre_activation.shape(), pre_activation.dtype(), request)?;
    count(x, weight);
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            cpu::affine(x, weight, bias, false, &pre_activation, false)?;
            activation::apply(&pre_activation, &output, activation)?;
        }
        Backend::Cuda => cuda::affine_activated(x, weight, bias, activation, &pre_activation, &output)?,
    }
    Ok((pre_activation, output))
}

/// Checks the operands of a forward pass and allocates its result.
pub(super) fn allocate(
    operator: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let dtype = check::computed(operator, &[("x", x), ("weight", weight)])?;
    let (outputs, inputs) = matrix(operator, weight)?;
    check::shape(operator, "x", x, check::with_columns(x.shape(), inputs))?;
    if let Some(bias) = bias {
        check::dtype(operator, "bias", bias, dtype)?;
        check::shape(operator, "bias", bias, [outputs])?;
    }
    let shape = check::with_columns(x.shape(), outputs);
    Tensor::empty(x.device(), shape, dtype, Request::new(Category::Activation, operator))
}

/// Computes out `[.., out]` += x `[.., in]` · weightᵀ + bias. Sums are in f32 and rounded once. Without a
/// bias, the output may be f32 for operands of any type.
pub fn add(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, out: &Tensor) -> Result<()> {
    const OPERATOR: &str = "linear.add";
    let dtype = check::computed(OPERATOR, &[("x", x), ("weight", weight)])?;
    check::sum(OPERATOR, "out", out, dtype)?;
    let (outputs, inputs) = matrix(OPERATOR, weight)?;
    check::shape(OPERATOR, "x", x, check::with_columns(out.shape(), inputs))?;
    check::shape(OPERATOR, "out", out, check::with_columns(x.shape(), outputs))?;
    if let Some(bias) = bias {
        check::dtype(OPERATOR, "bias", bias, dtype)?;
        check::dtype(OPERATOR, "out", out, dtype)?;
        check::shape(OPERATOR, "bias", bias, [outputs])?;
    }
    count(x, weight);
    match x.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::affine(x, weight, bias, false, out, true),
        Backend::Cuda => cuda::add(x, weight, bias, out),
    }
}

/// Computes dx `[.., in]` += dy `[.., out]` · weight `[out, in]`. Sums are in f32 and rounded once. dx may be
/// f32 for operands of any type.
pub fn add_backward_input(dy: &Tensor, weight: &Tensor, dx: &Tensor) -> Result<()> {
    const OPERATOR: &str = "linear.add_backward_input";
    let dtype = check::computed(OPERATOR, &[("dy", dy), ("weight", weight)])?;
    check::sum(OPERATOR, "dx", dx, dtype)?;
    let (outputs, inputs) = matrix(OPERATOR, weight)?;
    check::shape(OPERATOR, "dy", dy, check::with_columns(dx.shape(), outputs))?;
    check::shape(OPERATOR, "dx", dx, check::with_columns(dy.shape(), inputs))?;
    sum_backward_input(dy, weight, dx, true)
}

/// Computes dx `[.., in]` = dy `[.., out]` · weight `[out, in]`.
pub fn backward_input(dy: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let dx = allocate_gradient("linear.backward_input", dy, weight)?;
    matmul_backward_input(dy, weight, &dx, Epilogue::None)?;
    Ok(dx)
}

/// Checks the operands of [`backward_input`] and allocates its result.
pub(super) fn allocate_gradient(operator: &'static str, dy: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let dtype = check::computed(operator, &[("dy", dy), ("weight", weight)])?;
    let (outputs, inputs) = matrix(operator, weight)?;
    check::shape(operator, "dy", dy, check::with_columns(dy.shape(), outputs))?;
    let shape = check::with_columns(dy.shape(), inputs);
    Tensor::empty(dy.device(), shape, dtype, Request::new(Category::ActivationGradient, operator))
}

/// Computes dx = dy · weight, with an epilogue on a GPU.
pub(super) fn matmul_backward_input(
    dy: &Tensor,
    weight: &Tensor,
    dx: &Tensor,
    epilogue: Epilogue<'_>,
) -> Result<()> {
    count(dy, weight);
    match dy.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_input(dy, weight, dx, false),
        Backend::Cuda => cuda::backward_input(dy, weight, dx, false, epilogue),
    }
}

/// Returns x · Wᵀ `[.., out]` in f32 for operands of any type, `x [.., in]` and `weight [out, in]`: an
/// unrounded term of a sum over shards.
pub fn partial(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "linear.partial";
    check::computed(OPERATOR, &[("x", x), ("weight", weight)])?;
    let (outputs, inputs) = matrix(OPERATOR, weight)?;
    check::shape(OPERATOR, "x", x, check::with_columns(x.shape(), inputs))?;
    let (shape, request) =
        (check::with_columns(x.shape(), outputs), Request::new(Category::Activation, OPERATOR));
    let output = Tensor::empty(x.device(), shape, DType::F32, request)?;
    affine(x, weight, None, false, &output)?;
    Ok(output)
}

/// Returns dy `[.., out]` · weight `[out, in]` in f32 for operands of any type, `[.., in]`: an unrounded term
/// of a sum over shards.
pub fn partial_backward_input(dy: &Tensor, weight: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "linear.partial_backward_input";
    check::computed(OPERATOR, &[("dy", dy), ("weight", weight)])?;
    let (outputs, inputs) = matrix(OPERATOR, weight)?;
    check::shape(OPERATOR, "dy", dy, check::with_columns(dy.shape(), outputs))?;
    let (shape, request) =
        (check::with_columns(dy.shape(), inputs), Request::new(Category::ActivationGradient, OPERATOR));
    let sum = Tensor::empty(dy.device(), shape, DType::F32, request)?;
    sum_backward_input(dy, weight, &sum, false)?;
    Ok(sum)
}

/// Computes sum `[.., in]` (+)= dy `[.., out]` · weight `[out, in]`, with an f32 sum for operands of any
/// type. The caller has checked the operands.
pub(super) fn sum_backward_input(dy: &Tensor, weight: &Tensor, sum: &Tensor, accumulate: bool) -> Result<()> {
    count(dy, weight);
    match dy.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_input(dy, weight, sum, accumulate),
        Backend::Cuda => cuda::backward_input(dy, weight, sum, accumulate, Epilogue::None),
    }
}

/// Computes weight `[out, in]` (+)= dyᵀ · x and bias `[out]` (+)= Σ over rows of dy, for `dy [.., out]` and
/// `x [.., in]`. The targets are both f32 or both of the type of `dy` and `x`. Sums are in f32 and rounded
/// once.
pub fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "linear.backward_weight";
    let dtype = check::computed(OPERATOR, &[("dy", dy), ("x", x)])?;
    let targets = [Some(("weight", weight)), bias.map(|bias| ("bias", bias))];
    check::targets(OPERATOR, dtype, &targets.into_iter().flatten().collect::<Vec<_>>())?;
    let rows = dy.shape().rows();
    let outputs = dy.shape().columns();
    let inputs = x.shape().columns();
    check::shape(OPERATOR, "x", x, check::with_columns(dy.shape(), inputs))?;
    check::shape(OPERATOR, "weight", &weight.tensor, [outputs, inputs])?;
    let mut workspace = None;
    if let Some(bias) = bias {
        check::shape(OPERATOR, "bias", &bias.tensor, [outputs])?;
        // Reserved even if the matmul's epilogue computes the bias: allocations do not depend on the path.
        let bytes = columns::workspace::bytes(rows, outputs);
        workspace = Some(Tensor::workspace(dy.device(), OPERATOR, bytes)?);
    }
    count(dy, &weight.tensor);
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward_weight(dy, x, weight, bias)?,
        Backend::Cuda => {
            // The epilogue overwrites its target, so it is used for the first gradient only.
            let fused = bias.filter(|bias| !bias.accumulate && cuda::has_epilogues(dtype));
            cuda::backward_weight(dy, x, weight, fused)?;
            if let (None, Some(bias), Some(workspace)) = (fused, bias, &workspace) {
                cuda::sum_bias(OPERATOR, dy, workspace, bias)?;
            }
        }
    }
    Ok(())
}

/// Computes bias `[out]` (+)= Σ over rows of dy `[.., out]`, for a layer with a frozen weight.
pub fn backward_bias(dy: &Tensor, bias: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "linear.backward_bias";
    let dtype = check::computed(OPERATOR, &[("dy", dy)])?;
    check::targets(OPERATOR, dtype, &[("bias", bias)])?;
    let rows = dy.shape().rows();
    let outputs = dy.shape().columns();
    check::shape(OPERATOR, "bias", &bias.tensor, [outputs])?;
    let bytes = columns::workspace::bytes(rows, outputs);
    let workspace = Tensor::workspace(dy.device(), OPERATOR, bytes)?;
    match dy.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_bias(dy, bias),
        Backend::Cuda => cuda::sum_bias(OPERATOR, dy, &workspace, bias),
    }
}

/// Counts the FLOPs of a matmul of `rows` with a weight: two per row and weight element.
fn count(rows: &Tensor, weight: &Tensor) {
    rows.device().count_flops(Work::flops_of_products([rows.shape().rows(), weight.elements()]));
}

/// Returns a weight's numbers of outputs and inputs.
pub(super) fn matrix(operator: &'static str, weight: &Tensor) -> Result<(usize, usize)> {
    match *weight.shape().dims() {
        [outputs, inputs] => Ok((outputs, inputs)),
        _ => Err(check::wrong(operator, "weight", weight, "[out, in]".to_owned())),
    }
}
