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

/// Normalises the rows of `x`. With `residual` (branch, sum), stores x + branch in `sum` and normalises that.
pub(super) fn forward(
    operator: &'static str,
    x: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    affine: Affine<'_>,
    result: &Output,
) -> Result<()> {
    let Affine { weight, bias, settings } = affine;
    Forward {
        family: &FAMILY,
        x,
        residual,
        parameters: &[Some(weight), bias],
        settings,
        output: &result.output,
        statistics: &[&result.mean, &result.rstd],
        flops_per_element: 8,
    }
    .launch(operator)
}

/// Computes the input's gradient and adds `dsum`.
pub(super) fn backward_input(
    operator: &'static str,
    dy: &Tensor,
    dsum: Option<&Tensor>,
    saved: Saved<'_>,
    weight: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let Saved { x, mean, rstd } = saved;
    let statistics = &[mean, rstd];
    BackwardInput { family: &FAMILY, dy, dsum, x, weight, statistics, dx, flops_per_element: 12 }
        .launch(operator)
}

/// Computes weight (+)= Σ over rows of dy · (x − mean) · rstd and bias (+)= Σ over rows of dy, with partial
/// sums in `workspace`.
pub(super) fn backward_weight(
    operator: &'static str,
    dy: &Tensor,
    saved: Saved<'_>,
    workspace: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    let Saved { x, mean, rstd } = saved;
    let targets: Vec<_> = std::iter::once(weight).chain(bias).collect();
    BackwardWeight {
        family: &FAMILY,
        dy,
        x,
        statistics: &[mean, rstd],
        workspace,
        targets: &targets,
        sums: 2,
        flops_per_element: 4,
    }
    .launch(operator)
}
