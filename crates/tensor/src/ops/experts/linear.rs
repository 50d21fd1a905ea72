//! Matmuls of groups of rows, each with the weight of its expert.

use device::{Backend, Category, DType, MatrixRef, Request, Work, gemm};

use super::{cuda, divided_sums};
use crate::ops::routing::{NONE, Routes};
use crate::ops::{GradientTarget, check, linear};
use crate::{Result, Tensor};

/// Computes x · Wᵀ + b of each group as `[slots, out]` in `dtype`, which is the operands' type or f32. The
/// operands `x_si [slots, in]`, `weight_eoi [experts · out, in]` and `bias_eo [experts · out]` have one type.
pub fn forward(
    x_si: &Tensor,
    weight_eoi: &Tensor,
    bias_eo: Option<&Tensor>,
    routes: &Routes,
    dtype: DType,
) -> Result<Tensor> {
    const OPERATOR: &str = "experts.forward";
    let output_so = forward_again(x_si, weight_eoi, routes, dtype)?;
    let experts = routes.experts();
    let outputs = output_so.shape().columns();
    let inputs = x_si.shape().columns();
    if let Some(bias_eo) = bias_eo {
        check::computed(OPERATOR, &[("x", x_si), ("bias", bias_eo)])?;
        check::shape(OPERATOR, "bias", bias_eo, [experts * outputs])?;
    }
    count(x_si, weight_eoi, routes);
    match x_si.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x_si = x_si.values()?;
            let weight_eoi = weight_eoi.values()?;
            let bias_eo = bias_eo.map(Tensor::values).transpose()?;
            let mut output_so = output_so.values_mut()?;
            for_groups(routes, |expert, rows| {
                let group = &mut output_so[rows.start * outputs..rows.end * outputs];
                let matrix =
                    MatrixRef::new(&weight_eoi[expert * outputs * inputs..], outputs, inputs, inputs);
                let x = MatrixRef::new(&x_si[rows.start * inputs..], rows.len(), inputs, inputs);
                gemm(x, matrix.transposed(), group, outputs, 1.0, false);
                if let Some(bias) = &bias_eo {
                    let bias = &bias[expert * outputs..][..outputs];
                    let add = |row: &mut [f32]| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                    group.chunks_mut(outputs).for_each(add);
                }
            })?;
        }
        Backend::Cuda => cuda::forward(OPERATOR, (x_si, weight_eoi, bias_eo), routes, &output_so)?,
    }
    Ok(output_so)
}

/// Allocates the output of [`forward`] without computing it, for recomputation, where nothing reads it.
pub fn forward_again(x_si: &Tensor, weight_eoi: &Tensor, routes: &Routes, dtype: DType) -> Result<Tensor> {
    const OPERATOR: &str = "experts.forward";
    check::computed(OPERATOR, &[("x", x_si), ("weight", weight_eoi)])?;
    let (outputs, inputs) = expert_matrix(OPERATOR, weight_eoi, routes)?;
    check::shape(OPERATOR, "x", x_si, [routes.slots(), inputs])?;
    let request = Request::new(Category::Activation, OPERATOR);
    Tensor::empty(x_si.device(), [routes.slots(), outputs], dtype, request)
}

/// Computes dy · weight of each group as `[slots, in]` in `dtype`, which is the type of `dy_so [slots, out]`
/// or f32.
pub fn backward_input(dy_so: &Tensor, weight_eoi: &Tensor, routes: &Routes, dtype: DType) -> Result<Tensor> {
    const OPERATOR: &str = "experts.backward_input";
    check::computed(OPERATOR, &[("dy", dy_so), ("weight", weight_eoi)])?;
    let (outputs, inputs) = expert_matrix(OPERATOR, weight_eoi, routes)?;
    check::shape(OPERATOR, "dy", dy_so, [routes.slots(), outputs])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx_si = Tensor::empty(dy_so.device(), [routes.slots(), inputs], dtype, request)?;
    count(dy_so, weight_eoi, routes);
    match dy_so.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy_so = dy_so.values()?;
            let weight_eoi = weight_eoi.values()?;
            let mut dx_si = dx_si.values_mut()?;
            for_groups(routes, |expert, rows| {
                let matrix =
                    MatrixRef::new(&weight_eoi[expert * outputs * inputs..], outputs, inputs, inputs);
                let dy = MatrixRef::new(&dy_so[rows.start * outputs..], rows.len(), outputs, outputs);
                gemm(dy, matrix, &mut dx_si[rows.start * inputs..rows.end * inputs], inputs, 1.0, false);
            })?;
        }
        Backend::Cuda => cuda::backward_input(OPERATOR, (dy_so, weight_eoi), routes, &dx_si)?,
    }
    Ok(dx_si)
}

/// Computes weight `[experts · out, in]` (+)= dyᵀ · x of each group, for `dy_so [slots, out]` and `x_si
/// [slots, in]`. The target is f32 or of the operands' type; sums are in f32 and rounded once.
pub fn backward_weight(
    dy_so: &Tensor,
    x_si: &Tensor,
    routes: &Routes,
    weight: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "experts.backward_weight";
    let dtype = check::computed(OPERATOR, &[("dy", dy_so), ("x", x_si)])?;
    check::targets(OPERATOR, dtype, &[("weight", weight)])?;
    let (outputs, inputs) = expert_matrix(OPERATOR, &weight.tensor, routes)?;
    check::shape(OPERATOR, "dy", dy_so, [routes.slots(), outputs])?;
    check::shape(OPERATOR, "x", x_si, [routes.slots(), inputs])?;
    count(dy_so, &weight.tensor, routes);
    let parts = divided_sums::weight_workspace_bytes(OPERATOR, [dy_so, x_si, &weight.tensor], routes)?;
    let parts = Tensor::workspace(dy_so.device(), OPERATOR, parts)?;
    match dy_so.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let dy_so = dy_so.values()?;
            let x_si = x_si.values()?;
            let mut target = weight.tensor.values_mut()?;
            for_groups(routes, |expert, rows| {
                let target = &mut target[expert * outputs * inputs..][..outputs * inputs];
                if rows.is_empty() && !weight.accumulate {
                    target.fill(0.0);
                }
                if !rows.is_empty() {
                    let dy = MatrixRef::new(&dy_so[rows.start * outputs..], rows.len(), outputs, outputs);
                    let x = MatrixRef::new(&x_si[rows.start * inputs..], rows.len(), inputs, inputs);
                    gemm(dy.transposed(), x, target, inputs, 1.0, weight.accumulate);
                }
            })
            .map(drop)
        }
        Backend::Cuda => divided_sums::backward_weight(OPERATOR, (dy_so, x_si), routes, &parts, weight),
    }
}

/// Computes bias `[experts · out]` (+)= Σ of dy `[slots, out]` over the rows of each group. With
/// `is_weighted`, each row is multiplied by its routing weight.
pub fn backward_bias(
    dy_so: &Tensor,
    routes: &Routes,
    is_weighted: bool,
    bias: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "experts.backward_bias";
    let dtype = check::computed(OPERATOR, &[("dy", dy_so)])?;
    check::targets(OPERATOR, dtype, &[("bias", bias)])?;
    let outputs = dy_so.shape().columns();
    check::shape(OPERATOR, "bias", &bias.tensor, [routes.experts() * outputs])?;
    check::shape(OPERATOR, "dy", dy_so, [routes.slots(), outputs])?;
    let parts = divided_sums::bias_workspace(dy_so.device(), OPERATOR, routes, outputs)?;
    match dy_so.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let dy_so = dy_so.values()?;
            let mut target = bias.tensor.values_mut()?;
            let weights = routes.weights.read::<f32>()?;
            let sources = routes.sources.read::<u32>()?;
            for_groups(routes, |expert, rows| {
                let target = &mut target[expert * outputs..][..outputs];
                let mut sum = vec![0.0; outputs];
                for row in rows.filter(|row| sources[*row] != NONE) {
                    let weight = if is_weighted { weights[sources[row] as usize] } else { 1.0 };
                    let dy = &dy_so[row * outputs..][..outputs];
                    sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += weight * dy);
                }
                let own = |target: f32| if bias.accumulate { target } else { 0.0 };
                target.iter_mut().zip(sum).for_each(|(target, sum)| *target = own(*target) + sum);
            })
            .map(drop)
        }
        Backend::Cuda => divided_sums::backward_bias(OPERATOR, dy_so, (routes, is_weighted), &parts, bias),
    }
}

/// Calls `body` with each expert and the range of its rows, and collects the results.
pub(super) fn for_groups<T>(
    routes: &Routes,
    mut body: impl FnMut(usize, std::ops::Range<usize>) -> T,
) -> Result<Vec<T>> {
    let offsets = routes.offsets.read::<u32>()?;
    let groups = offsets.windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
    Ok(groups.enumerate().map(|(expert, rows)| body(expert, rows)).collect())
}

/// Returns the outputs and inputs of one expert's matrix.
fn expert_matrix(operator: &'static str, weight: &Tensor, routes: &Routes) -> Result<(usize, usize)> {
    let (rows, inputs) = linear::matrix(operator, weight)?;
    if !rows.is_multiple_of(routes.experts().max(1)) {
        let expected = format!("the same number of rows for each of {} experts", routes.experts());
        return Err(check::wrong(operator, "weight", weight, expected));
    }
    Ok((rows / routes.experts().max(1), inputs))
}

/// Counts the FLOPs of a matmul of all rows, each with one expert's matrix.
fn count(rows: &Tensor, weight: &Tensor, routes: &Routes) {
    let matrix = weight.elements() / routes.experts().max(1);
    rows.device().count_flops(Work::flops_of_products([routes.slots(), matrix]));
}
