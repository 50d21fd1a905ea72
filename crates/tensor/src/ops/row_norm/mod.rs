//! Code that layer norm and RMS norm share: checks and allocations, loops over rows, and launches.

pub(super) mod cpu;
pub(super) mod cuda;
mod forms;

use device::{Category, DType, Request};

use super::{add, check, gpu};
use crate::{Result, Tensor};

/// Settings of a norm. An epsilon converts to settings without measuring and without `block_per_row`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settings {
    /// Number added to the variance or to the mean square.
    pub epsilon: f32,
    /// Whether a GPU also measures the largest magnitude of results ([`Tensor::with_maxima`]).
    pub measures: bool,
    /// Whether forward uses a whole thread block per row, which is faster for few rows. The order of sums,
    /// and so their bits, may differ.
    pub block_per_row: bool,
}

impl From<f32> for Settings {
    fn from(epsilon: f32) -> Self {
        Settings { epsilon, ..Settings::default() }
    }
}

/// Checks that `x_td` and `parameters` have one compute type, and returns it.
pub(super) fn check_operands(
    operator: &'static str,
    x_td: &Tensor,
    parameters: &[(&'static str, &Tensor)],
) -> Result<DType> {
    let dtype = check::computed(operator, &[("x", x_td)])?;
    check::not_empty(operator, "x", x_td)?;
    let width = x_td.shape().columns();
    for (name, tensor) in parameters {
        check::dtype(operator, name, tensor, dtype)?;
        check::shape(operator, name, tensor, [width])?;
    }
    Ok(dtype)
}

/// Checks the operands of a backward pass: the output's gradient, the input, and statistics of rows.
pub(super) fn check_saved(
    operator: &'static str,
    dy_td: &Tensor,
    x_td: &Tensor,
    statistics: &[(&'static str, &Tensor)],
) -> Result<()> {
    check::computed(operator, &[("x", x_td), ("dy", dy_td)])?;
    check::f32s(operator, statistics)?;
    check::shape(operator, "dy", dy_td, x_td.shape())?;
    statistics
        .iter()
        .try_for_each(|(name, statistic)| check::shape(operator, name, statistic, [x_td.shape().rows()]))
}

/// Checks the branch of a residual addition, and allocates the sum.
pub(super) fn allocate_sum(
    operator: &'static str,
    residual_td: &Tensor,
    branch_td: &Tensor,
    dtype: DType,
) -> Result<Tensor> {
    check::dtype(operator, "branch", branch_td, dtype)?;
    check::shape(operator, "branch", branch_td, residual_td.shape())?;
    residual_td.like(dtype, Request::new(Category::Activation, operator))
}

/// Returns the rows to normalise on the host: `x_td`, or with `residual` (branch, sum) the sum, after
/// computing it.
pub(super) fn sum_on_host<'a>(
    x_td: &'a Tensor,
    residual: Option<(&Tensor, &'a Tensor)>,
) -> Result<&'a Tensor> {
    let Some((branch_td, sum_td)) = residual else { return Ok(x_td) };
    add::forward_on_host(&x_td.values()?, &branch_td.values()?, &mut sum_td.values_mut()?);
    Ok(sum_td)
}

/// Allocates the output of the forward pass, and with `measures` the words of its largest magnitude.
pub(super) fn allocate_output(operator: &'static str, x_td: &Tensor, measures: bool) -> Result<Tensor> {
    let request = Request::new(Category::Activation, operator);
    gpu::with_cells(x_td.like(x_td.dtype(), request)?, measures, request)
}

/// Allocates one statistic per row, `[rows]` f32.
pub(super) fn allocate_statistic(operator: &'static str, x_td: &Tensor) -> Result<Tensor> {
    let request = Request::new(Category::Activation, operator);
    Tensor::empty(x_td.device(), [x_td.shape().rows()], DType::F32, request)
}

/// Checks the gradient of the residual sum, if present, and allocates the input's gradient.
pub(super) fn allocate_gradient(
    operator: &'static str,
    x_td: &Tensor,
    dsum_td: Option<&Tensor>,
    dtype: DType,
    measures: bool,
) -> Result<Tensor> {
    if let Some(dsum_td) = dsum_td {
        check::dtype(operator, "dsum", dsum_td, dtype)?;
        check::shape(operator, "dsum", dsum_td, x_td.shape())?;
    }
    let request = Request::new(Category::ActivationGradient, operator);
    gpu::with_cells(x_td.like(dtype, request)?, measures, request)
}
