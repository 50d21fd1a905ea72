//! Batch normalisation (Ioffe, Szegedy, *Batch Normalization*, 2015) of channels-last arrays, with an
//! optional residual addition and ReLU in the same pass.
//!
//! y = relu((x − mean) · rstd · weight + bias + residual), where rstd is 1/√(variance + epsilon). Mean and
//! biased variance are computed for each channel over all pixels of the batch, or are running averages.

mod cpu;
pub(crate) mod cuda;
mod output;
mod workspace;

use device::{Backend, Category, DType, Request};

use super::{GradientTarget, cast, check};
use crate::{Result, Tensor};
pub use output::{Affine, Gradients, Output, Passes, Saved};

/// Normalises each channel of `x [.., channels]` with the batch's statistics, and adds `residual`, of the
/// same shape. `record`, if present, is `[2, channels]` f32 and receives mean and unbiased variance, from
/// which the caller updates running averages.
///
/// # Errors
/// Shapes or types that do not agree, a batch without elements, out of memory.
pub fn forward(
    x: &Tensor,
    residual: Option<&Tensor>,
    affine: Affine<'_>,
    record: Option<&Tensor>,
) -> Result<Output> {
    const OPERATOR: &str = "batch_norm.forward";
    check_operands(OPERATOR, x, residual, affine)?;
    let channels = x.shape().columns();
    if let Some(record) = record {
        check::f32s(OPERATOR, &[("record", record)])?;
        check::shape(OPERATOR, "record", record, [2, channels])?;
    }
    let output = allocate(OPERATOR, x, Category::Activation)?;
    let mean = statistic(OPERATOR, x)?;
    let rstd = statistic(OPERATOR, x)?;
    let workspace = Tensor::workspace(x.device(), OPERATOR, workspace::bytes(x.shape().rows(), channels))?;
    let statistics = [&mean, &rstd];
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            cpu::statistics(x, statistics, affine.epsilon, record)?;
            cpu::apply(x, residual, affine, statistics, &output)?;
        }
        Backend::Cuda => {
            cuda::statistics(OPERATOR, x, statistics, affine.epsilon, record, &workspace)?;
            cuda::apply(OPERATOR, x, residual, affine, statistics, false, &output)?;
        }
    }
    Ok(Output { output, mean, rstd })
}

/// Normalises as [`forward`] does, with running averages of mean and variance, `[channels]` f32.
pub fn evaluate(
    x: &Tensor,
    residual: Option<&Tensor>,
    affine: Affine<'_>,
    [mean, variance]: [&Tensor; 2],
) -> Result<Tensor> {
    const OPERATOR: &str = "batch_norm.evaluate";
    check_operands(OPERATOR, x, residual, affine)?;
    check::f32s(OPERATOR, &[("mean", mean), ("variance", variance)])?;
    for (name, statistic) in [("mean", mean), ("variance", variance)] {
        check::shape(OPERATOR, name, statistic, [x.shape().columns()])?;
    }
    let output = allocate(OPERATOR, x, Category::Activation)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::evaluate(x, residual, affine, [mean, variance], &output)?,
        Backend::Cuda => cuda::apply(OPERATOR, x, residual, affine, [mean, variance], true, &output)?,
    }
    Ok(output)
}

/// Computes the gradients of the input and of the residual from the output's gradient `dy`. The residual's
/// gradient is `dy` masked by ReLU. One of the two overwrites `dy` if no other view of its storage exists.
pub fn backward_input(
    dy: Tensor,
    saved: Saved<'_>,
    weight: &Tensor,
    with_residual: bool,
) -> Result<Gradients> {
    const OPERATOR: &str = "batch_norm.backward_input";
    let Saved { x, passes, mean, rstd } = saved;
    check::computed(OPERATOR, &[("x", x), ("dy", &dy), ("weight", weight)])?;
    check::f32s(OPERATOR, &[("mean", mean), ("rstd", rstd)])?;
    check::not_empty(OPERATOR, "x", x)?;
    check::shape(OPERATOR, "dy", &dy, x.shape())?;
    let channels = x.shape().columns();
    for (name, vector) in [("weight", weight), ("mean", mean), ("rstd", rstd)] {
        check::shape(OPERATOR, name, vector, [channels])?;
    }
    match passes {
        Passes::Everywhere => {}
        Passes::ByOutput(output) => {
            check::computed(OPERATOR, &[("x", x), ("output", output)])?;
            check::shape(OPERATOR, "output", output, x.shape())?;
        }
        Passes::ByInput { bias } => {
            check::computed(OPERATOR, &[("x", x), ("bias", bias)])?;
            check::shape(OPERATOR, "bias", bias, [channels])?;
        }
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let sums = Tensor::empty(x.device(), [2, channels], DType::F32, request)?;
    // Without a ReLU the residual's gradient is the output's.
    let has_relu = !matches!(passes, Passes::Everywhere);
    let masked = match (has_relu && with_residual, dy.is_unique()) {
        (false, _) => None,
        (true, true) => Some(dy.clone()),
        (true, false) => Some(allocate(OPERATOR, x, Category::ActivationGradient)?),
    };
    let input = match with_residual || !dy.is_unique() {
        true => allocate(OPERATOR, x, Category::ActivationGradient)?,
        false => dy.clone(),
    };
    let workspace = Tensor::workspace(x.device(), OPERATOR, workspace::bytes(x.shape().rows(), channels))?;
    let gradient = masked.as_ref().unwrap_or(&dy);
    let passes = if masked.is_some() { Passes::Everywhere } else { passes };
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            cpu::sums(&dy, saved, weight, masked.as_ref(), &sums)?;
            cpu::input_gradient(gradient, Saved { passes, ..saved }, weight, &sums, &input)?;
        }
        Backend::Cuda => {
            cuda::sums(OPERATOR, &dy, saved, weight, masked.as_ref(), &sums, &workspace)?;
            cuda::input_gradient(OPERATOR, gradient, Saved { passes, ..saved }, weight, &sums, &input)?;
        }
    }
    let residual = with_residual.then(|| masked.unwrap_or(dy));
    Ok(Gradients { input, residual, sums })
}

/// Adds the first row of `sums` to the gradient of the weight and the second to that of the bias, both
/// `[channels]`, or overwrites these. `dtype` is the type of the operands; both targets are f32 or both
/// `dtype`.
pub fn backward_weight(
    sums: &Tensor,
    dtype: DType,
    weight: &GradientTarget,
    bias: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "batch_norm.backward_weight";
    check::f32s(OPERATOR, &[("sums", sums)])?;
    check::targets(OPERATOR, dtype, &[("weight", weight), ("bias", bias)])?;
    let channels = sums.shape().columns();
    for (name, target) in [("weight", weight), ("bias", bias)] {
        check::shape(OPERATOR, name, &target.tensor, [channels])?;
    }
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cuda => cuda::give(OPERATOR, sums, weight, bias),
        Backend::Cpu => {
            give(&sums.view(0, [channels])?, weight)?;
            give(&sums.view(channels, [channels])?, bias)
        }
    }
}

/// Computes target (+)= sum on the host, rounded once.
fn give(sum: &Tensor, target: &GradientTarget) -> Result<()> {
    match target.accumulate {
        true => cpu::add(sum, &target.tensor),
        false if sum.dtype() == target.tensor.dtype() => target.tensor.copy_from(sum),
        false => cast::into(sum, &target.tensor),
    }
}

fn check_operands(
    operator: &'static str,
    x: &Tensor,
    residual: Option<&Tensor>,
    affine: Affine<'_>,
) -> Result<()> {
    let Affine { weight, bias, .. } = affine;
    check::not_empty(operator, "x", x)?;
    check::computed(operator, &[("x", x), ("weight", weight), ("bias", bias)])?;
    for (name, vector) in [("weight", weight), ("bias", bias)] {
        check::shape(operator, name, vector, [x.shape().columns()])?;
    }
    let Some(residual) = residual else { return Ok(()) };
    check::computed(operator, &[("x", x), ("residual", residual)])?;
    check::shape(operator, "residual", residual, x.shape())
}

fn allocate(operator: &'static str, x: &Tensor, category: Category) -> Result<Tensor> {
    x.like(x.dtype(), Request::new(category, operator))
}

fn statistic(operator: &'static str, x: &Tensor) -> Result<Tensor> {
    let request = Request::new(Category::Activation, operator);
    Tensor::empty(x.device(), [x.shape().columns()], DType::F32, request)
}
