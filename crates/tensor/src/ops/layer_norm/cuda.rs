//! Launches of `kernels/layer_norm.cu`.

use device::Family;

use super::output::Output;
use crate::ops::GradientTarget;
use crate::ops::columns::cuda as columns;
use crate::ops::kernels::family;
use crate::ops::row_norm::Settings;
use crate::ops::row_norm::cuda::{BackwardInput, BackwardWeight, Forward};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "layer_norm",
    headers: ["columns.cuh", "held_rows.cuh", "maximum.cuh"],
    constants: columns::MEASURING_CONSTANTS,
);

#[derive(Clone, Copy)]
pub(super) struct Affine<'a> {
    pub(super) weight: &'a Tensor,
    pub(super) bias: Option<&'a Tensor>,
    pub(super) settings: Settings,
}

/// Tensors saved by the forward pass.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a> {
    pub(super) x: &'a Tensor,
    pub(super) mean: &'a Tensor,
    pub(super) rstd: &'a Tensor,
}

/// Normalises the rows of `x_td`. With `residual` (branch, sum), stores x + branch in `sum_td` and normalises
/// that.
pub(super) fn forward(
    operator: &'static str,
    x_td: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    affine: Affine<'_>,
    result: &Output,
) -> Result<()> {
    let Affine { weight: weight_d, bias: bias_d, settings } = affine;
    Forward {
        family: &FAMILY,
        x: x_td,
        residual,
        parameters: &[Some(weight_d), bias_d],
        settings,
        output: &result.output,
        statistics: &[&result.mean, &result.rstd],
        flops_per_element: 8,
    }
    .launch(operator)
}

/// Computes the input's gradient and adds `dsum_td`.
pub(super) fn backward_input(
    operator: &'static str,
    dy_td: &Tensor,
    dsum_td: Option<&Tensor>,
    saved: Saved<'_>,
    weight_d: &Tensor,
    dx_td: &Tensor,
) -> Result<()> {
    let Saved { x: x_td, mean: mean_t, rstd: rstd_t } = saved;
    let statistics = &[mean_t, rstd_t];
    BackwardInput {
        family: &FAMILY,
        dy: dy_td,
        dsum: dsum_td,
        x: x_td,
        weight: weight_d,
        statistics,
        dx: dx_td,
        flops_per_element: 12,
    }
    .launch(operator)
}

/// Computes weight (+)= Σ over rows of dy · (x − mean) · rstd and bias (+)= Σ over rows of dy, with partial
/// sums in `workspace`.
pub(super) fn backward_weight(
    operator: &'static str,
    dy_td: &Tensor,
    saved: Saved<'_>,
    workspace: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    let Saved { x: x_td, mean: mean_t, rstd: rstd_t } = saved;
    let targets: Vec<_> = std::iter::once(weight).chain(bias).collect();
    BackwardWeight {
        family: &FAMILY,
        dy: dy_td,
        x: x_td,
        statistics: &[mean_t, rstd_t],
        workspace,
        targets: &targets,
        sums: 2,
        flops_per_element: 4,
    }
    .launch(operator)
}
