//! Launches of `kernels/rms_norm.cu`.

use device::Family;

use super::output::Output;
use crate::ops::GradientTarget;
use crate::ops::columns::cuda as columns;
use crate::ops::kernels::family;
use crate::ops::row_norm::Settings;
use crate::ops::row_norm::cuda::{BackwardInput, BackwardWeight, Forward};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "rms_norm",
    headers: ["columns.cuh", "held_rows.cuh", "maximum.cuh"],
    constants: columns::MEASURING_CONSTANTS,
);

/// Normalises the rows of `x_td`. With `residual` (branch, sum), stores x + branch in `sum_td` and normalises
/// that.
pub(super) fn forward(
    operator: &'static str,
    x_td: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    weight_d: &Tensor,
    settings: Settings,
    result: &Output,
) -> Result<()> {
    Forward {
        family: &FAMILY,
        x: x_td,
        residual,
        parameters: &[Some(weight_d)],
        settings,
        output: &result.output,
        statistics: &[&result.rstd],
        flops_per_element: 4,
    }
    .launch(operator)
}

/// Computes the input's gradient and adds `dsum_td`.
pub(super) fn backward_input(
    operator: &'static str,
    dy_td: &Tensor,
    dsum_td: Option<&Tensor>,
    x_td: &Tensor,
    rstd_t: &Tensor,
    weight_d: &Tensor,
    dx_td: &Tensor,
) -> Result<()> {
    BackwardInput {
        family: &FAMILY,
        dy: dy_td,
        dsum: dsum_td,
        x: x_td,
        weight: weight_d,
        statistics: &[rstd_t],
        dx: dx_td,
        flops_per_element: 8,
    }
    .launch(operator)
}

/// Computes weight (+)= Σ over rows of dy · x · rstd, with partial sums in `workspace`.
pub(super) fn backward_weight(
    operator: &'static str,
    dy_td: &Tensor,
    x_td: &Tensor,
    rstd_t: &Tensor,
    workspace: &Tensor,
    weight: &GradientTarget,
) -> Result<()> {
    BackwardWeight {
        family: &FAMILY,
        dy: dy_td,
        x: x_td,
        statistics: &[rstd_t],
        workspace,
        targets: &[weight],
        sums: 1,
        flops_per_element: 3,
    }
    .launch(operator)
}
