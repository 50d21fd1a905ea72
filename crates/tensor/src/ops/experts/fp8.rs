//! Matmuls of groups of rows with operands in FP8, like [`fp8_linear`](crate::ops::fp8_linear).
//!
//! Groups begin at multiples of [`MULTIPLE`], because the GPU's copy engine requires it of transposed
//! operands.

use device::{Backend, Category, DType, Request, Work};

use super::hopper;
use super::linear::for_groups;
use crate::ops::fp8_linear::{MULTIPLE, Scaled, multiply_columns};
use crate::ops::routing::Routes;
use crate::ops::{GradientTarget, check};
use crate::{Result, Tensor};

/// Computes x · Wᵀ + b of each group as `[slots, out]` in `dtype`, from `x [slots, in]` and `weight [experts
/// · out, in]` as stored, and `bias [experts · out]`.
pub fn forward(
    x: &Scaled,
    weight: &Scaled,
    bias: Option<&Tensor>,
    routes: &Routes,
    dtype: DType,
) -> Result<Tensor> {
    const OPERATOR: &str = "experts.fp8_forward";
    let rows = weight.values.shape().rows();
    let inputs = weight.values.shape().columns();
    let outputs = rows / routes.experts().max(1);
    check_groups(OPERATOR, x, routes, [outputs, inputs])?;
    check::shape(OPERATOR, "x", &x.values, [routes.slots(), inputs])?;
    if let Some(bias) = bias {
        check::shape(OPERATOR, "bias", bias, [rows])?;
    }
    let request = Request::new(Category::Activation, OPERATOR);
    let y = Tensor::empty(x.values.device(), [routes.slots(), outputs], dtype, request)?;
    count(&y, routes, outputs * inputs);
    match y.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => each_group(routes, |expert, group| {
            let own = rows_of(weight, expert * outputs, outputs)?;
            let bias = bias.map(|bias| bias.view(expert * outputs, [outputs])).transpose()?;
            let y = y.view(group.start * outputs, [group.len(), outputs])?;
            let x = rows_of(x, group.start, group.len())?;
            multiply_columns((&x, 0), (&own, 0), inputs, bias.as_ref(), &y, false)
        })?,
        Backend::Cuda => hopper::forward(OPERATOR, (x, weight, bias), routes, &y)?,
    }
    Ok(y)
}

/// Computes dy · W of each group as `[slots, in]` in `dtype`, from `dy [slots, out]` as stored and `weight
/// [in, experts · out]` transposed.
pub fn backward_input(dy: &Scaled, weight: &Scaled, routes: &Routes, dtype: DType) -> Result<Tensor> {
    const OPERATOR: &str = "experts.fp8_backward_input";
    let inputs = weight.values.shape().rows();
    let outputs = dy.values.shape().columns();
    check_groups(OPERATOR, dy, routes, [outputs, inputs])?;
    check::shape(OPERATOR, "weight", &weight.values, [inputs, routes.experts() * outputs])?;
    check::shape(OPERATOR, "dy", &dy.values, [routes.slots(), outputs])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx = Tensor::empty(dy.values.device(), [routes.slots(), inputs], dtype, request)?;
    count(&dx, routes, outputs * inputs);
    match dx.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => each_group(routes, |expert, group| {
            let dx = dx.view(group.start * inputs, [group.len(), inputs])?;
            let dy = rows_of(dy, group.start, group.len())?;
            multiply_columns((&dy, 0), (weight, expert * outputs), outputs, None, &dx, false)
        })?,
        Backend::Cuda => hopper::backward_input(OPERATOR, (dy, weight), routes, &dx)?,
    }
    Ok(dx)
}

/// Computes weight `[experts · out, in]` (+)= dyᵀ · x of each group, from `dy [out, slots]` and `x [in,
/// slots]`, both transposed. As in [`fp8_linear`](crate::ops::fp8_linear::backward_weight), partial sums are
/// added in f32 at intervals.
pub fn backward_weight(dy: &Scaled, x: &Scaled, routes: &Routes, weight: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "experts.fp8_backward_weight";
    let [outputs, inputs] = [dy, x].map(|operand| operand.values.shape().rows());
    check_groups(OPERATOR, dy, routes, [outputs, inputs])?;
    check::shape(OPERATOR, "dy", &dy.values, [outputs, routes.slots()])?;
    check::shape(OPERATOR, "x", &x.values, [inputs, routes.slots()])?;
    check::shape(OPERATOR, "weight", &weight.tensor, [routes.experts() * outputs, inputs])?;
    count(&weight.tensor, routes, outputs * inputs);
    match weight.tensor.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => for_groups(routes, |expert, group| (expert, group))?.into_iter().try_for_each(
            |(expert, group)| {
                let target = weight.tensor.view(expert * outputs * inputs, [outputs, inputs])?;
                let first = group.start;
                multiply_columns((dy, first), (x, first), group.len(), None, &target, weight.accumulate)
            },
        ),
        Backend::Cuda => hopper::backward_weight(OPERATOR, (dy, x), routes, weight),
    }
}

/// Calls `body` with each expert that has rows, and the range of its rows.
fn each_group(routes: &Routes, body: impl Fn(usize, std::ops::Range<usize>) -> Result<()>) -> Result<()> {
    let groups = for_groups(routes, |expert, rows| (expert, rows))?;
    groups.into_iter().filter(|(_, rows)| !rows.is_empty()).try_for_each(|(expert, rows)| body(expert, rows))
}

/// Returns `rows` rows of a matrix from row `first` on, with their factors.
fn rows_of(matrix: &Scaled, first: usize, rows: usize) -> Result<Scaled> {
    let columns = matrix.values.shape().columns();
    let values = matrix.values.view(first * columns, [rows, columns])?;
    let scales = match matrix.scales.elements() {
        1 => matrix.scales.clone(),
        _ => matrix.scales.view(first, [rows])?,
    };
    Ok(Scaled { values, scales })
}

/// Checks that groups and matrices are aligned.
fn check_groups(operator: &'static str, x: &Scaled, routes: &Routes, sizes: [usize; 2]) -> Result<()> {
    let is_aligned = |size: &usize| size.is_multiple_of(MULTIPLE);
    if !is_aligned(&routes.slots()) || !sizes.iter().all(is_aligned) {
        let expected = format!("rows, inputs and outputs in multiples of {MULTIPLE}");
        return Err(check::wrong(operator, "x", &x.values, expected));
    }
    Ok(())
}

/// Counts the FLOPs of a matmul of all rows, each with a matrix of `elements` elements.
fn count(result: &Tensor, routes: &Routes, elements: usize) {
    result.device().count_flops(Work::flops_of_products([routes.slots(), elements]));
}
