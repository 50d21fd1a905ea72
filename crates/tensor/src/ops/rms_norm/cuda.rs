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

/// Normalises the rows of `x`. With `residual` (branch, sum), stores x + branch in `sum` and normalises that.
pub(super) fn forward(
    operator: &'static str,
    x: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    weight: &Tensor,
    settings: Settings,
    result: &Output,
) -> Result<()> {
    Forward {
        family: &FAMILY,
        x,
        residual,
        parameters: &[Some(weight)],
        settings,
        output: &result.output,
        statistics: &[&result.rstd],
        flops_per_element: 4,
    }
    .launch(operator)
}

/// Computes the input's gradient and adds `dsum`.
pub(super) fn backward_input(
    operator: &'static str,
    dy: &Tensor,
    dsum: Option<&Tensor>,
    x: &Tensor,
    rstd: &Tensor,
    weight: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    BackwardInput { family: &FAMILY, dy, dsum, x, weight, statistics: &[rstd], dx, flops_per_element: 8 }
        .launch(operator)
}

/// Computes weight (+)= Σ over rows of dy · x · rstd, with partial sums in `workspace`.
pub(super) fn backward_weight(
    operator: &'static str,
    dy: &Tensor,
    x: &Tensor,
    rstd: &Tensor,
    workspace: &Tensor,
    weight: &GradientTarget,
) -> Result<()> {
    BackwardWeight {
        family: &FAMILY,
        dy,
        x,
        statistics: &[rstd],
        workspace,
        targets: &[weight],
        sums: 1,
        flops_per_element: 3,
    }
    .launch(operator)
}
