//! Layer normalisation of a row on the host.

use crate::ops::columns;
use crate::ops::math::{sum, sum2};
use crate::ops::row_norm::cpu::{self as rows, Outputs};

#[derive(Clone, Copy)]
pub(super) struct Affine<'a> {
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) epsilon: f32,
}

/// Tensors saved by the forward pass.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a> {
    pub(super) x: &'a [f32],
    pub(super) mean: &'a [f32],
    pub(super) rstd: &'a [f32],
}

pub(super) fn forward(x_td: &[f32], affine: Affine<'_>, out: Outputs<'_, 2>) {
    rows::forward(
        x_td,
        affine.weight.len(),
        out,
        #[inline(always)]
        |x_td: &[f32], y: &mut [f32]| normalise(x_td, affine, y),
    );
}

/// Normalises a row; returns its mean and rstd.
#[inline(always)]
fn normalise(x: &[f32], affine: Affine<'_>, y: &mut [f32]) -> [f32; 2] {
    let scale = 1.0 / x.len() as f32;
    let mean = sum(x, |v| v) * scale;
    let variance = sum(x, |v| (v - mean) * (v - mean)) * scale;
    let rstd = 1.0 / (variance + affine.epsilon).sqrt();
    match affine.bias {
        Some(bias) => {
            for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(affine.weight).zip(bias) {
                *y = ((x - mean) * rstd).mul_add(*weight, *bias);
            }
        }
        None => {
            for ((y, x), weight) in y.iter_mut().zip(x).zip(affine.weight) {
                *y = (x - mean) * rstd * weight;
            }
        }
    }
    [mean, rstd]
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
            row_gradient(dy_td, x, weight_d, saved.mean[row], saved.rstd[row], dx_td);
        },
    );
}

/// Computes dx = rstd · (g − mean(g) − x̂ · mean(g · x̂)) with g = dy · weight and x̂ = (x − mean) · rstd.
#[inline(always)]
fn row_gradient(dy: &[f32], x: &[f32], weight: &[f32], mean: f32, rstd: f32, dx: &mut [f32]) {
    let scale = 1.0 / weight.len() as f32;
    for ((dx, dy), weight) in dx.iter_mut().zip(dy).zip(weight) {
        *dx = dy * weight;
    }
    let mean_g = sum(dx, |g| g) * scale;
    let mean_g_xhat = sum2(dx, x, |g, x| g * ((x - mean) * rstd)) * scale;
    for (dx, x) in dx.iter_mut().zip(x) {
        let xhat = (x - mean) * rstd;
        *dx = rstd * (*dx - mean_g - xhat * mean_g_xhat);
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
            let mean = saved.mean[row];
            let rstd = saved.rstd[row];
            #[inline(always)]
            move |x: f32| (x - mean) * rstd
        },
    );
}

pub(super) fn backward_bias(dy_td: &[f32], bias_d: &mut [f32], accumulate: bool, rows: usize) {
    let width = bias_d.len();
    columns::sum_rows(
        rows,
        bias_d,
        accumulate,
        #[inline(always)]
        |row, columns, sum| {
            sum.iter_mut().zip(&dy_td[row * width..][columns]).for_each(|(sum, dy)| *sum += dy);
        },
    );
}
