//! RMS normalisation of a row on the host.

use crate::ops::math::{sum, sum2};
use crate::ops::row_norm::cpu::{self as rows, Outputs};

/// Tensors saved by the forward pass.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a> {
    pub(super) x: &'a [f32],
    pub(super) rstd: &'a [f32],
}

pub(super) fn forward(x_td: &[f32], weight_d: &[f32], epsilon: f32, out: Outputs<'_, 1>) {
    rows::forward(
        x_td,
        weight_d.len(),
        out,
        #[inline(always)]
        |x_td: &[f32], y: &mut [f32]| normalise(x_td, weight_d, epsilon, y),
    );
}

#[inline(always)]
fn normalise(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) -> [f32; 1] {
    let rstd = rstd(x, epsilon);
    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
        *y = x * rstd * weight;
    }
    [rstd]
}

/// Returns the reciprocal root mean square of a row.
#[inline(always)]
pub(in crate::ops) fn rstd(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (sum(x, |v| v * v) / x.len() as f32 + epsilon).sqrt()
}

pub(super) fn backward_input(
    dy_td: &[f32],
    dsum_td: Option<&[f32]>,
    saved: Saved<'_>,
    weight_d: &[f32],
    dx_td: &mut [f32],
) {
    rows::backward_input(
        dy_td,
        dsum_td,
        saved.x,
        weight_d.len(),
        dx_td,
        #[inline(always)]
        |row: usize, dy_td: &[f32], x: &[f32], dx_td: &mut [f32]| {
            dx_td.copy_from_slice(dy_td);
            row_gradient(x, saved.rstd[row], weight_d, dx_td);
        },
    );
}

/// Replaces the gradient of a row's output by the input's: rstd · (g − x̂ · mean(g · x̂)) with g = dy ·
/// weight and x̂ = x · rstd.
#[inline(always)]
pub(in crate::ops) fn row_gradient(x: &[f32], rstd: f32, weight: &[f32], dx: &mut [f32]) {
    dx.iter_mut().zip(weight).for_each(|(dx, weight)| *dx *= weight);
    let mean = sum2(dx, x, |g, x| g * (x * rstd)) / x.len() as f32;
    for (dx, x) in dx.iter_mut().zip(x) {
        *dx = rstd * (*dx - x * rstd * mean);
    }
}

pub(super) fn backward_weight(dy_td: &[f32], saved: Saved<'_>, weight_d: &mut [f32], accumulate: bool) {
    rows::backward_weight(
        dy_td,
        saved.x,
        weight_d,
        accumulate,
        #[inline(always)]
        |row: usize| {
            let rstd = saved.rstd[row];
            #[inline(always)]
            move |x: f32| x * rstd
        },
    );
}
