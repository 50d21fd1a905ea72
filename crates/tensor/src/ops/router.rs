//! Logits of a router: a linear layer whose results are unrounded f32 for operands of any type.

use device::parallel::simd;
use device::{Backend, Category, DType, MatrixRef, Request, Work, gemm, gemm_then};

use super::{GradientTarget, check, columns, experts, linear};
use crate::{Result, Tensor};

/// Computes x · Wᵀ + b as `[rows, experts]` f32. `x_td [.., in]` and `weight_ed [experts, in]` have one type;
/// `bias_e [experts]` is f32.
pub fn forward(x_td: &Tensor, weight_ed: &Tensor, bias_e: Option<&Tensor>) -> Result<Tensor> {
    const OPERATOR: &str = "router.forward";
    check::computed(OPERATOR, &[("x", x_td), ("weight", weight_ed)])?;
    let (experts, inputs) = linear::matrix(OPERATOR, weight_ed)?;
    check::shape(OPERATOR, "x", x_td, check::with_columns(x_td.shape(), inputs))?;
    if let Some(bias_e) = bias_e {
        check::f32s(OPERATOR, &[("bias", bias_e)])?;
        check::shape(OPERATOR, "bias", bias_e, [experts])?;
    }
    let rows = x_td.shape().rows();
    let request = Request::new(Category::Activation, OPERATOR);
    let logits_te = Tensor::empty(x_td.device(), [rows, experts], DType::F32, request)?;
    x_td.device().count_flops(Work::flops_of_products([rows, weight_ed.elements()]));
    match x_td.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x_td = x_td.values()?;
            let weight_ed = weight_ed.values()?;
            let bias_e = bias_e.map(Tensor::read::<f32>).transpose()?;
            let bias_e: &[f32] = bias_e.as_deref().unwrap_or(&[]);
            let (x_td, weight_ed) = (
                MatrixRef::new(&x_td, rows, inputs, inputs),
                MatrixRef::new(&weight_ed, experts, inputs, inputs),
            );
            gemm_then(
                x_td,
                weight_ed.transposed(),
                &mut logits_te.values_mut()?,
                experts,
                1.0,
                false,
                |finished| {
                    let add = |row: &mut [f32]| row.iter_mut().zip(bias_e).for_each(|(y, b)| *y += b);
                    simd(|| finished.chunks_mut(experts).for_each(add));
                },
            );
        }
        Backend::Cuda => {
            linear::cuda::affine(x_td, weight_ed, None, false, &logits_te)?;
            bias_e.map_or(Ok(()), |bias| experts::cuda::add_bias(OPERATOR, &logits_te, bias))?;
        }
    }
    Ok(logits_te)
}

/// Computes the gradient of `x` from the gradient of the logits, `dy_te [rows, experts]` f32: dy · weight in
/// f32, rounded once to `dtype`, as a tensor of `shape`.
pub fn backward_input(
    dy_te: &Tensor,
    weight_ed: &Tensor,
    shape: impl Into<crate::Shape>,
    dtype: DType,
) -> Result<Tensor> {
    const OPERATOR: &str = "router.backward_input";
    let (rows, experts, inputs) = check_gradient(OPERATOR, dy_te, weight_ed)?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx_td = Tensor::empty(dy_te.device(), shape, dtype, request)?;
    check::elements(OPERATOR, "x", &dx_td, rows * inputs)?;
    dy_te.device().count_flops(Work::flops_of_products([rows, weight_ed.elements()]));
    match dy_te.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy_te = dy_te.values()?;
            let weight_ed = weight_ed.values()?;
            let dy_te = MatrixRef::new(&dy_te, rows, experts, experts);
            let weight_ed = MatrixRef::new(&weight_ed, experts, inputs, inputs);
            gemm(dy_te, weight_ed, &mut dx_td.values_mut()?, inputs, 1.0, false);
        }
        Backend::Cuda => experts::cuda::router_input(OPERATOR, dy_te, weight_ed, &dx_td)?,
    }
    Ok(dx_td)
}

/// Computes weight `[experts, in]` (+)= dyᵀ · x and bias `[experts]` (+)= Σ over rows of dy, for `dy_te
/// [rows, experts]` f32. Sums are in f32 and rounded once.
pub fn backward_weight(
    dy_te: &Tensor,
    x_td: &Tensor,
    weight: Option<&GradientTarget>,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "router.backward_weight";
    check::f32s(OPERATOR, &[("dy", dy_te)])?;
    let rows = dy_te.shape().rows();
    let experts = dy_te.shape().columns();
    let inputs = x_td.shape().columns();
    check::elements(OPERATOR, "x", x_td, rows * inputs)?;
    if let Some(weight) = weight {
        check::shape(OPERATOR, "weight", &weight.tensor, [experts, inputs])?;
    }
    if let Some(bias) = bias {
        check::shape(OPERATOR, "bias", &bias.tensor, [experts])?;
    }
    dy_te.device().count_flops(Work::flops_of_products([rows, experts, inputs]));
    let parts = match weight {
        Some(weight) => experts::divided_sums::router_workspace_bytes(rows, weight.tensor.elements()),
        None => 0,
    };
    let parts = Tensor::workspace(dy_te.device(), OPERATOR, parts)?;
    match dy_te.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let gradient = dy_te.read::<f32>()?;
            let x_td = x_td.values()?;
            if let Some(weight) = weight {
                let dy_te = MatrixRef::new(&gradient, rows, experts, experts).transposed();
                let x_td = MatrixRef::new(&x_td, rows, inputs, inputs);
                gemm(dy_te, x_td, &mut weight.tensor.values_mut()?, inputs, 1.0, weight.accumulate);
            }
            let Some(bias) = bias else { return Ok(()) };
            let gradient: &[f32] = &gradient;
            let add = |row: usize, columns: std::ops::Range<usize>, sum: &mut [f32]| {
                let dy_te = &gradient[row * experts..][columns];
                sum.iter_mut().zip(dy_te).for_each(|(sum, dy)| *sum += dy);
            };
            columns::sum_rows(rows, &mut bias.tensor.values_mut()?, bias.accumulate, add);
            Ok(())
        }
        Backend::Cuda => {
            let of_weight =
                |weight| experts::divided_sums::router_weight(OPERATOR, (dy_te, x_td), &parts, weight);
            weight.map_or(Ok(()), of_weight)?;
            bias.map_or(Ok(()), |bias| experts::cuda::router_bias(OPERATOR, dy_te, bias))
        }
    }
}

/// Checks the gradient of logits against the weight. Returns the numbers of rows, experts and inputs.
fn check_gradient(
    operator: &'static str,
    dy_te: &Tensor,
    weight_ed: &Tensor,
) -> Result<(usize, usize, usize)> {
    check::f32s(operator, &[("dy", dy_te)])?;
    let (experts, inputs) = linear::matrix(operator, weight_ed)?;
    check::shape(operator, "dy", dy_te, [dy_te.shape().rows(), experts])?;
    Ok((dy_te.shape().rows(), experts, inputs))
}
