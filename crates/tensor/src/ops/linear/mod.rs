//! Linear layers, y = activation(x · Wᵀ + b), with separate backward functions for input and weight.

mod cpu;
pub(crate) mod cuda;
mod ending;

use device::{Backend, Category, DType, Epilogue, Request, Work};

pub use super::activation::backward as backward_activation;
use super::activation::{self, Activation};
use super::{GradientTarget, check, columns, padding};
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

/// Computes a linear layer and its activation for `x_ti [.., in]`, `weight_oi [out, in]`, `bias_o [out]`, all
/// f32 or all bf16, giving `[.., out]`. ReLU overwrites the sums. If backward needs the activation's input,
/// it is allocated before the output.
pub fn forward(
    x_ti: &Tensor,
    weight_oi: &Tensor,
    bias_o: Option<&Tensor>,
    activation: Activation,
) -> Result<Output> {
    const OPERATOR: &str = "linear.forward";
    if activation.needs_input() {
        let (pre_activation_to, output_to) = activated(OPERATOR, x_ti, weight_oi, bias_o, activation)?;
        return Ok(Output { output: output_to, pre_activation: Some(pre_activation_to) });
    }
    let output_to = plain(OPERATOR, x_ti, weight_oi, bias_o, activation == Activation::Relu)?;
    Ok(Output { output: output_to, pre_activation: None })
}

/// Allocates the output of a layer without activation and does not compute it, for recomputation, where
/// nothing reads it.
pub fn forward_again(x_ti: &Tensor, weight_oi: &Tensor, bias_o: Option<&Tensor>) -> Result<Output> {
    Ok(Output { output: allocate("linear.forward", x_ti, weight_oi, bias_o)?, pre_activation: None })
}

/// Returns x · Wᵀ for `x_ti [.., in]` and `weight_oi [out, in]` as `[.., columns]`, where `columns` is the
/// number of outputs rounded up to a multiple of 8. Columns from `out` on are undefined.
pub fn forward_padded(x_ti: &Tensor, weight_oi: &Tensor) -> Result<Tensor> {
    let output_to = forward_padded_again(x_ti, weight_oi)?;
    affine(x_ti, weight_oi, None, false, &output_to)?;
    Ok(output_to)
}

/// Allocates the output of [`forward_padded`] and does not compute it, for recomputation, where nothing reads
/// it.
pub fn forward_padded_again(x_ti: &Tensor, weight_oi: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "linear.forward";
    let dtype = check::computed(OPERATOR, &[("x", x_ti), ("weight", weight_oi)])?;
    let (outputs, inputs) = matrix(OPERATOR, weight_oi)?;
    check::shape(OPERATOR, "x", x_ti, check::with_columns(x_ti.shape(), inputs))?;
    let shape = check::with_columns(x_ti.shape(), padding::padded(outputs));
    Tensor::empty(x_ti.device(), shape, dtype, Request::new(Category::Activation, OPERATOR))
}

/// Returns x · Wᵀ + b. With `clip`, applies ReLU.
pub(super) fn plain(
    operator: &'static str,
    x_ti: &Tensor,
    weight_oi: &Tensor,
    bias_o: Option<&Tensor>,
    clip: bool,
) -> Result<Tensor> {
    let output_to = allocate(operator, x_ti, weight_oi, bias_o)?;
    affine(x_ti, weight_oi, bias_o, clip, &output_to)?;
    Ok(output_to)
}

/// Computes output = x · Wᵀ + b. With `clip`, applies ReLU.
fn affine(
    x_ti: &Tensor,
    weight_oi: &Tensor,
    bias_o: Option<&Tensor>,
    clip: bool,
    output_to: &Tensor,
) -> Result<()> {
    count(x_ti, weight_oi);
    match x_ti.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::affine(x_ti, weight_oi, bias_o, clip, output_to, false),
        Backend::Cuda => cuda::affine(x_ti, weight_oi, bias_o, clip, output_to),
    }
}

/// Returns x · Wᵀ + b and `activation` of it.
pub(super) fn activated(
    operator: &'static str,
    x_ti: &Tensor,
    weight_oi: &Tensor,
    bias_o: Option<&Tensor>,
    activation: Activation,
) -> Result<(Tensor, Tensor)> {
    let pre_activation_to = allocate(operator, x_ti, weight_oi, bias_o)?;
    let request = Request::new(Category::Activation, operator);
    let output_to =
        Tensor::empty(x_ti.device(), pre_activation_to.shape(), pre_activation_to.dtype(), request)?;
    count(x_ti, weight_oi);
    match x_ti.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            cpu::affine(x_ti, weight_oi, bias_o, false, &pre_activation_to, false)?;
            activation::apply(&pre_activation_to, &output_to, activation)?;
        }
        Backend::Cuda => {
            cuda::affine_activated(x_ti, weight_oi, bias_o, activation, &pre_activation_to, &output_to)?
        }
    }
    Ok((pre_activation_to, output_to))
}

/// Checks the operands of a forward pass and allocates its result.
pub(super) fn allocate(
    operator: &'static str,
    x_ti: &Tensor,
    weight_oi: &Tensor,
    bias_o: Option<&Tensor>,
) -> Result<Tensor> {
    let dtype = check::computed(operator, &[("x", x_ti), ("weight", weight_oi)])?;
    let (outputs, inputs) = matrix(operator, weight_oi)?;
    check::shape(operator, "x", x_ti, check::with_columns(x_ti.shape(), inputs))?;
    if let Some(bias_o) = bias_o {
        check::dtype(operator, "bias", bias_o, dtype)?;
        check::shape(operator, "bias", bias_o, [outputs])?;
    }
    let shape = check::with_columns(x_ti.shape(), outputs);
    Tensor::empty(x_ti.device(), shape, dtype, Request::new(Category::Activation, operator))
}

/// Computes out `[.., out]` += x `[.., in]` · weightᵀ + bias. Sums are in f32 and rounded once. Without a
/// bias, the output may be f32 for operands of any type.
pub fn add(x_ti: &Tensor, weight_oi: &Tensor, bias_o: Option<&Tensor>, out_to: &Tensor) -> Result<()> {
    const OPERATOR: &str = "linear.add";
    let dtype = check::computed(OPERATOR, &[("x", x_ti), ("weight", weight_oi)])?;
    check::sum(OPERATOR, "out", out_to, dtype)?;
    let (outputs, inputs) = matrix(OPERATOR, weight_oi)?;
    check::shape(OPERATOR, "x", x_ti, check::with_columns(out_to.shape(), inputs))?;
    check::shape(OPERATOR, "out", out_to, check::with_columns(x_ti.shape(), outputs))?;
    if let Some(bias_o) = bias_o {
        check::dtype(OPERATOR, "bias", bias_o, dtype)?;
        check::dtype(OPERATOR, "out", out_to, dtype)?;
        check::shape(OPERATOR, "bias", bias_o, [outputs])?;
    }
    count(x_ti, weight_oi);
    match x_ti.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::affine(x_ti, weight_oi, bias_o, false, out_to, true),
        Backend::Cuda => cuda::add(x_ti, weight_oi, bias_o, out_to),
    }
}

/// Computes dx `[.., in]` += dy `[.., out]` · weight `[out, in]`. Sums are in f32 and rounded once. dx may be
/// f32 for operands of any type.
pub fn add_backward_input(dy_to: &Tensor, weight_oi: &Tensor, dx_ti: &Tensor) -> Result<()> {
    const OPERATOR: &str = "linear.add_backward_input";
    let dtype = check::computed(OPERATOR, &[("dy", dy_to), ("weight", weight_oi)])?;
    check::sum(OPERATOR, "dx", dx_ti, dtype)?;
    let (outputs, inputs) = matrix(OPERATOR, weight_oi)?;
    check::shape(OPERATOR, "dy", dy_to, check::with_columns(dx_ti.shape(), outputs))?;
    check::shape(OPERATOR, "dx", dx_ti, check::with_columns(dy_to.shape(), inputs))?;
    sum_backward_input(dy_to, weight_oi, dx_ti, true)
}

/// Computes dx `[.., in]` = dy `[.., out]` · weight `[out, in]`. The rows of dy may be padded
/// ([`forward_padded`]).
pub fn backward_input(dy_to: &Tensor, weight_oi: &Tensor) -> Result<Tensor> {
    let dx_ti = allocate_gradient("linear.backward_input", dy_to, weight_oi)?;
    matmul_backward_input(dy_to, weight_oi, &dx_ti, Epilogue::None)?;
    Ok(dx_ti)
}

/// Checks the operands of [`backward_input`] and allocates its result.
pub(super) fn allocate_gradient(
    operator: &'static str,
    dy_to: &Tensor,
    weight_oi: &Tensor,
) -> Result<Tensor> {
    let dtype = check::computed(operator, &[("dy", dy_to), ("weight", weight_oi)])?;
    let (outputs, inputs) = matrix(operator, weight_oi)?;
    padding::check(operator, "dy", dy_to, outputs)?;
    let shape = check::with_columns(dy_to.shape(), inputs);
    Tensor::empty(dy_to.device(), shape, dtype, Request::new(Category::ActivationGradient, operator))
}

/// Computes dx = dy · weight, with an epilogue on a GPU.
pub(super) fn matmul_backward_input(
    dy_to: &Tensor,
    weight_oi: &Tensor,
    dx_ti: &Tensor,
    epilogue: Epilogue<'_>,
) -> Result<()> {
    count(dy_to, weight_oi);
    match dy_to.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_input(dy_to, weight_oi, dx_ti, false),
        Backend::Cuda => cuda::backward_input(dy_to, weight_oi, dx_ti, false, epilogue),
    }
}

/// Returns x · Wᵀ `[.., out]` in f32 for operands of any type, `x_ti [.., in]` and `weight_oi [out, in]`: an
/// unrounded term of a sum over shards.
pub fn partial(x_ti: &Tensor, weight_oi: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "linear.partial";
    check::computed(OPERATOR, &[("x", x_ti), ("weight", weight_oi)])?;
    let (outputs, inputs) = matrix(OPERATOR, weight_oi)?;
    check::shape(OPERATOR, "x", x_ti, check::with_columns(x_ti.shape(), inputs))?;
    let (shape, request) =
        (check::with_columns(x_ti.shape(), outputs), Request::new(Category::Activation, OPERATOR));
    let output_to = Tensor::empty(x_ti.device(), shape, DType::F32, request)?;
    affine(x_ti, weight_oi, None, false, &output_to)?;
    Ok(output_to)
}

/// Returns dy `[.., out]` · weight `[out, in]` in f32 for operands of any type, `[.., in]`: an unrounded term
/// of a sum over shards. The rows of dy may be padded ([`forward_padded`]).
pub fn partial_backward_input(dy_to: &Tensor, weight_oi: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "linear.partial_backward_input";
    check::computed(OPERATOR, &[("dy", dy_to), ("weight", weight_oi)])?;
    let (outputs, inputs) = matrix(OPERATOR, weight_oi)?;
    padding::check(OPERATOR, "dy", dy_to, outputs)?;
    let (shape, request) =
        (check::with_columns(dy_to.shape(), inputs), Request::new(Category::ActivationGradient, OPERATOR));
    let sum_ti = Tensor::empty(dy_to.device(), shape, DType::F32, request)?;
    sum_backward_input(dy_to, weight_oi, &sum_ti, false)?;
    Ok(sum_ti)
}

/// Computes sum `[.., in]` (+)= dy `[.., out]` · weight `[out, in]`, with an f32 sum for operands of any
/// type. The caller has checked the operands.
pub(super) fn sum_backward_input(
    dy_to: &Tensor,
    weight_oi: &Tensor,
    sum_ti: &Tensor,
    accumulate: bool,
) -> Result<()> {
    count(dy_to, weight_oi);
    match dy_to.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_input(dy_to, weight_oi, sum_ti, accumulate),
        Backend::Cuda => cuda::backward_input(dy_to, weight_oi, sum_ti, accumulate, Epilogue::None),
    }
}

/// Computes weight `[out, in]` (+)= dyᵀ · x and bias `[out]` (+)= Σ over rows of dy, for `dy_to [.., out]`
/// and `x_ti [.., in]`. The targets are both f32 or both of the type of `dy_to` and `x_ti`. Sums are in f32
/// and rounded once. Without a bias, the rows of dy may be padded ([`forward_padded`]).
pub fn backward_weight(
    dy_to: &Tensor,
    x_ti: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "linear.backward_weight";
    let dtype = check::computed(OPERATOR, &[("dy", dy_to), ("x", x_ti)])?;
    let targets = [Some(("weight", weight)), bias.map(|bias| ("bias", bias))];
    check::targets(OPERATOR, dtype, &targets.into_iter().flatten().collect::<Vec<_>>())?;
    let rows = dy_to.shape().rows();
    let inputs = x_ti.shape().columns();
    let outputs = match (bias, weight.tensor.shape().rows()) {
        (None, outputs) if dy_to.shape().columns() == padding::padded(outputs) => outputs,
        _ => dy_to.shape().columns(),
    };
    check::shape(OPERATOR, "x", x_ti, check::with_columns(dy_to.shape(), inputs))?;
    check::shape(OPERATOR, "weight", &weight.tensor, [outputs, inputs])?;
    let mut workspace = None;
    if let Some(bias) = bias {
        check::shape(OPERATOR, "bias", &bias.tensor, [outputs])?;
        // Reserved even if the matmul's epilogue computes the bias: allocations do not depend on the path.
        let bytes = columns::workspace::bytes(rows, outputs);
        workspace = Some(Tensor::workspace(dy_to.device(), OPERATOR, bytes)?);
    }
    count(dy_to, &weight.tensor);
    match dy_to.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward_weight(dy_to, x_ti, weight, bias)?,
        Backend::Cuda => {
            // The epilogue overwrites its target, so it is used for the first gradient only.
            let fused = bias.filter(|bias| !bias.accumulate && cuda::has_epilogues(dtype));
            cuda::backward_weight(dy_to, x_ti, weight, fused)?;
            if let (None, Some(bias), Some(workspace)) = (fused, bias, &workspace) {
                cuda::sum_bias(OPERATOR, dy_to, workspace, bias)?;
            }
        }
    }
    Ok(())
}

/// Computes bias `[out]` (+)= Σ over rows of dy `[.., out]`, for a layer with a frozen weight.
pub fn backward_bias(dy_to: &Tensor, bias: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "linear.backward_bias";
    let dtype = check::computed(OPERATOR, &[("dy", dy_to)])?;
    check::targets(OPERATOR, dtype, &[("bias", bias)])?;
    let rows = dy_to.shape().rows();
    let outputs = dy_to.shape().columns();
    check::shape(OPERATOR, "bias", &bias.tensor, [outputs])?;
    let bytes = columns::workspace::bytes(rows, outputs);
    let workspace = Tensor::workspace(dy_to.device(), OPERATOR, bytes)?;
    match dy_to.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_bias(dy_to, bias),
        Backend::Cuda => cuda::sum_bias(OPERATOR, dy_to, &workspace, bias),
    }
}

/// Counts the FLOPs of a matmul of `rows` with a weight: two per row and weight element.
fn count(rows: &Tensor, weight: &Tensor) {
    rows.device().count_flops(Work::flops_of_products([rows.shape().rows(), weight.elements()]));
}

/// Returns a weight's numbers of outputs and inputs.
pub(super) fn matrix(operator: &'static str, weight_oi: &Tensor) -> Result<(usize, usize)> {
    match *weight_oi.shape().dims() {
        [outputs, inputs] => Ok((outputs, inputs)),
        _ => Err(check::wrong(operator, "weight", weight_oi, "[out, in]".to_owned())),
    }
}
