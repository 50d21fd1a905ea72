//! Matmuls of groups of rows, each with the weight of its expert.

use device::{Backend, Category, DType, MatrixRef, Request, Work, gemm};

use super::cuda;
use crate::ops::routing::{NONE, Routes};
use crate::ops::{GradientTarget, check, linear};
use crate::{Result, Tensor};

/// Computes x · Wᵀ + b of each group as `[slots, out]` in `dtype`, which is the operands' type or f32. The
/// operands `x [slots, in]`, `weight [experts · out, in]` and `bias [experts · out]` have one type.
pub fn forward(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    routes: &Routes,
    dtype: DType,
) -> Result<Tensor> {
    const OPERATOR: &str = "experts.forward";
    let output = forward_again(x, weight, routes, dtype)?;
    let experts = routes.experts();
    let outputs = output.shape().columns();
    let inputs = x.shape().columns();
    if let Some(bias) = bias {
        check::computed(OPERATOR, &[("x", x), ("bias", bias)])?;
        check::shape(OPERATOR, "bias", bias, [experts * outputs])?;
    }
    count(x, weight, routes);
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x = x.values()?;
            let weight = weight.values()?;
            let bias = bias.map(Tensor::values).transpose()?;
            let mut output = output.values_mut()?;
            for_groups(routes, |expert, rows| {
                let group = &mut output[rows.start * outputs..rows.end * outputs];
                let matrix = MatrixRef::new(&weight[expert * outputs * inputs..], outputs, inputs, inputs);
                let x = MatrixRef::new(&x[rows.start * inputs..], rows.len(), inputs, inputs);
                gemm(x, matrix.transposed(), group, outputs, 1.0, false);
                if let Some(bias) = &bias {
                    let bias = &bias[expert * outputs..][..outputs];
                    let add = |row: &mut [f32]| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                    group.chunks_mut(outputs).for_each(add);
                }
            })?;
        }
        Backend::Cuda => cuda::forward(OPERATOR, (x, weight, bias), routes, &output)?,
    }
    Ok(output)
}

/// Allocates the output of [`forward`] without computing it, for recomputation, where nothing reads it.
pub fn forward_again(x: &Tensor, weight: &Tensor, routes: &Routes, dtype: DType) -> Result<Tensor> {
    const OPERATOR: &str = "experts.forward";
    check::computed(OPERATOR, &[("x", x), ("weight", weight)])?;
    let (outputs, inputs) = expert_matrix(OPERATOR, weight, routes)?;
    check::shape(OPERATOR, "x", x, [routes.slots(), inputs])?;
    let request = Request::new(Category::Activation, OPERATOR);
    Tensor::empty(x.device(), [routes.slots(), outputs], dtype, request)
}

/// Computes dy · weight of each group as `[slots, in]` in `dtype`, which is the type of `dy [slots, out]` or
/// f32.
pub fn backward_input(dy: &Tensor, weight: &Tensor, routes: &Routes, dtype: DType) -> Result<Tensor> {
    const OPERATOR: &str = "experts.backward_input";
    check::computed(OPERATOR, &[("dy", dy), ("weight", weight)])?;
    let (outputs, inputs) = expert_matrix(OPERATOR, weight, routes)?;
    check::shape(OPERATOR, "dy", dy, [routes.slots(), outputs])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx = Tensor::empty(dy.device(), [routes.slots(), inputs], dtype, request)?;
    count(dy, weight, routes);
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy = dy.values()?;
            let weight = weight.values()?;
            let mut dx = dx.values_mut()?;
            for_groups(routes, |expert, rows| {
                let matrix = MatrixRef::new(&weight[expert * outputs * inputs..], outputs, inputs, inputs);
                let dy = MatrixRef::new(&dy[rows.start * outputs..], rows.len(), outputs, outputs);
                gemm(dy, matrix, &mut dx[rows.start * inputs..rows.end * inputs], inputs, 1.0, false);
            })?;
        }
        Backend::Cuda => cuda::backward_input(OPERATOR, (dy, weight), routes, &dx)?,
    }
    Ok(dx)
}

/// Computes weight `[experts · out, in]` (+)= dyᵀ · x of each group, for `dy [slots, out]` and `x [slots,
/// in]`. The target is f32 or of the operands' type; sums are in f32 and rounded once.
pub fn backward_weight(dy: &Tensor, x: &Tensor, routes: &Routes, weight: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "experts.backward_weight";
    let dtype = check::computed(OPERATOR, &[("dy", dy), ("x", x)])?;
    check::targets(OPERATOR, dtype, &[("weight", weight)])?;
    let (outputs, inputs) = expert_matrix(OPERATOR, &weight.tensor, routes)?;
    check::shape(OPERATOR, "dy", dy, [routes.slots(), outputs])?;
    check::shape(OPERATOR, "x", x, [routes.slots(), inputs])?;
    count(dy, &weight.tensor, routes);
    match dy.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let dy = dy.values()?;
            let x = x.values()?;
            let mut target = weight.tensor.values_mut()?;
            for_groups(routes, |expert, rows| {
                let target = &mut target[expert * outputs * inputs..][..outputs * inputs];
                if rows.is_empty() && !weight.accumulate {
                    target.fill(0.0);
                }
                if !rows.is_empty() {
                    let dy = MatrixRef::new(&dy[rows.start * outputs..], rows.len(), outputs, outputs);
                    let x = MatrixRef::new(&x[rows.start * inputs..], rows.len(), inputs, inputs);
                    gemm(dy.transposed(), x, target, inputs, 1.0, weight.accumulate);
                }
            })
            .map(drop)
        }
        Backend::Cuda => cuda::backward_weight(OPERATOR, (dy, x), routes, weight),
    }
}

/// Computes bias `[experts · out]` (+)= Σ of dy `[slots, out]` over the rows of each group. With
/// `is_weighted`, each row is multiplied by its routing weight.
pub fn backward_bias(dy: &Tensor, routes: &Routes, is_weighted: bool, bias: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "experts.backward_bias";
    let dtype = check::computed(OPERATOR, &[("dy", dy)])?;
    check::targets(OPERATOR, dtype, &[("bias", bias)])?;
    let outputs = dy.shape().columns();
    check::shape(OPERATOR, "bias", &bias.tensor, [routes.experts() * outputs])?;
    check::shape(OPERATOR, "dy", dy, [routes.slots(), outputs])?;
    match dy.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let dy = dy.values()?;
            let mut target = bias.tensor.values_mut()?;
            let weights = routes.weights.read::<f32>()?;
            let sources = routes.sources.read::<u32>()?;
            for_groups(routes, |expert, rows| {
                let target = &mut target[expert * outputs..][..outputs];
                let mut sum = vec![0.0; outputs];
                for row in rows.filter(|row| sources[*row] != NONE) {
                    let weight = if is_weighted { weights[sources[row] as usize] } else { 1.0 };
                    let dy = &dy[row * outputs..][..outputs];
                    sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += weight * dy);
                }
                let own = |target: f32| if bias.accumulate { target } else { 0.0 };
                target.iter_mut().zip(sum).for_each(|(target, sum)| *target = own(*target) + sum);
            })
            .map(drop)
        }
        Backend::Cuda => cuda::backward_bias(OPERATOR, dy, (routes, is_weighted), bias),
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
