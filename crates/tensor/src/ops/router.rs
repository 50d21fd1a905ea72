//! Logits of a router: a linear layer whose results are unrounded f32 for operands of any type.

use device::parallel::simd;
use device::{Backend, Category, DType, MatrixRef, Request, Work, gemm, gemm_then};

use super::{GradientTarget, check, columns, experts, linear};
use crate::{Result, Tensor};

/// Computes x · Wᵀ + b as `[rows, experts]` f32. `x [.., in]` and `weight [experts, in]` have one type; `bias
/// [experts]` is f32.
pub fn forward(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    const OPERATOR: &str = "router.forward";
    check::computed(OPERATOR, &[("x", x), ("weight", weight)])?;
    let (experts, inputs) = linear::matrix(OPERATOR, weight)?;
    check::shape(OPERATOR, "x", x, check::with_columns(x.shape(), inputs))?;
    if let Some(bias) = bias {
        check::f32s(OPERATOR, &[("bias", bias)])?;
        check::shape(OPERATOR, "bias", bias, [experts])?;
    }
    let rows = x.shape().rows();
    let request = Request::new(Category::Activation, OPERATOR);
    let logits = Tensor::empty(x.device(), [rows, experts], DType::F32, request)?;
    x.device().count_flops(Work::flops_of_products([rows, weight.elements()]));
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x = x.values()?;
            let weight = weight.values()?;
            let bias = bias.map(Tensor::read::<f32>).transpose()?;
            let bias: &[f32] = bias.as_deref().unwrap_or(&[]);
            let (x, weight) =
                (MatrixRef::new(&x, rows, inputs, inputs), MatrixRef::new(&weight, experts, inputs, inputs));
            gemm_then(x, weight.transposed(), &mut logits.values_mut()?, experts, 1.0, false, |finished| {
                let add = |row: &mut [f32]| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                simd(|| finished.chunks_mut(experts).for_each(add));
            });
        }
        Backend::Cuda => {
            linear::cuda::affine(x, weight, None, false, &logits)?;
            bias.map_or(Ok(()), |bias| experts::cuda::add_bias(OPERATOR, &logits, bias))?;
        }
    }
    Ok(logits)
}

/// Computes the gradient of `x` from the gradient of the logits, `dy [rows, experts]` f32: dy · weight in
/// f32, rounded once to `dtype`, as a tensor of `shape`.
pub fn backward_input(
    dy: &Tensor,
    weight: &Tensor,
    shape: impl Into<crate::Shape>,
    dtype: DType,
) -> Result<Tensor> {
    const OPERATOR: &str = "router.backward_input";
    let (rows, experts, inputs) = check_gradient(OPERATOR, dy, weight)?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx = Tensor::empty(dy.device(), shape, dtype, request)?;
    check::elements(OPERATOR, "x", &dx, rows * inputs)?;
    dy.device().count_flops(Work::flops_of_products([rows, weight.elements()]));
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy = dy.values()?;
            let weight = weight.values()?;
            let dy = MatrixRef::new(&dy, rows, experts, experts);
            let weight = MatrixRef::new(&weight, experts, inputs, inputs);
            gemm(dy, weight, &mut dx.values_mut()?, inputs, 1.0, false);
        }
        Backend::Cuda => experts::cuda::router_input(OPERATOR, dy, weight, &dx)?,
    }
    Ok(dx)
}

/// Computes weight `[experts, in]` (+)= dyᵀ · x and bias `[experts]` (+)= Σ over rows of dy, for `dy [rows,
/// experts]` f32. Sums are in f32 and rounded once.
pub fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    weight: Option<&GradientTarget>,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "router.backward_weight";
    check::f32s(OPERATOR, &[("dy", dy)])?;
    let rows = dy.shape().rows();
    let experts = dy.shape().columns();
    let inputs = x.shape().columns();
    check::elements(OPERATOR, "x", x, rows * inputs)?;
    if let Some(weight) = weight {
        check::shape(OPERATOR, "weight", &weight.tensor, [experts, inputs])?;
    }
    if let Some(bias) = bias {
        check::shape(OPERATOR, "bias", &bias.tensor, [experts])?;
    }
    dy.device().count_flops(Work::flops_of_products([rows, experts, inputs]));
    let parts = match weight {
        Some(weight) => experts::cuda::router_workspace_bytes(rows, weight.tensor.elements()),
        None => 0,
    };
    let parts = Tensor::workspace(dy.device(), OPERATOR, parts)?;
    match dy.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let gradient = dy.read::<f32>()?;
            let x = x.values()?;
            if let Some(weight) = weight {
                let dy = MatrixRef::new(&gradient, rows, experts, experts).transposed();
                let x = MatrixRef::new(&x, rows, inputs, inputs);
                gemm(dy, x, &mut weight.tensor.values_mut()?, inputs, 1.0, weight.accumulate);
            }
            let Some(bias) = bias else { return Ok(()) };
            let gradient: &[f32] = &gradient;
            let add = |row: usize, columns: std::ops::Range<usize>, sum: &mut [f32]| {
                let dy = &gradient[row * experts..][columns];
                sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
            };
            columns::sum_rows(rows, &mut bias.tensor.values_mut()?, bias.accumulate, add);
            Ok(())
        }
        Backend::Cuda => {
            let of_weight = |weight| experts::cuda::router_weight(OPERATOR, (dy, x), &parts, weight);
            weight.map_or(Ok(()), of_weight)?;
            bias.map_or(Ok(()), |bias| experts::cuda::router_bias(OPERATOR, dy, bias))
        }
    }
}

/// Checks the gradient of logits against the weight. Returns the numbers of rows, experts and inputs.
fn check_gradient(operator: &'static str, dy: &Tensor, weight: &Tensor) -> Result<(usize, usize, usize)> {
    check::f32s(operator, &[("dy", dy)])?;
    let (experts, inputs) = linear::matrix(operator, weight)?;
    check::shape(operator, "dy", dy, [dy.shape().rows(), experts])?;
    Ok((dy.shape().rows(), experts, inputs))
}
