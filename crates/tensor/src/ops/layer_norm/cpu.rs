//! Layer normalisation on the host: one task for a block of rows, each row read from the cache after its
//! first pass.

use device::parallel::{for_pieces, for_tasks, simd};

use crate::ops::math::{sum, sum2};
use crate::ops::{columns, rows};

/// Parameters of the layer.
#[derive(Clone, Copy)]
pub(super) struct Affine<'a> {
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) epsilon: f32,
}

/// Results of the forward pass.
pub(super) struct Outputs<'a> {
    pub(super) output: &'a mut [f32],
    pub(super) mean: &'a mut [f32],
    pub(super) rstd: &'a mut [f32],
}

/// Tensors saved by the forward pass.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a> {
    pub(super) x: &'a [f32],
    pub(super) mean: &'a [f32],
    pub(super) rstd: &'a [f32],
}

pub(super) fn forward(x: &[f32], affine: Affine<'_>, out: Outputs<'_>) {
    let width = affine.weight.len();
    let rows = rows::per_task(width);
    let tasks = x.chunks(rows * width).zip(out.chunks(rows, width)).collect();
    for_tasks(tasks, |(x, out): (&[f32], Outputs<'_>)| {
        simd(
            #[inline(always)]
            || normalise(x, affine, out),
        );
    });
}

pub(super) fn forward_residual(
    residual: &[f32],
    branch: &[f32],
    affine: Affine<'_>,
    sum: &mut [f32],
    out: Outputs<'_>,
) {
    let width = affine.weight.len();
    let rows = rows::per_task(width);
    let piece = rows * width;
    let inputs = residual.chunks(piece).zip(branch.chunks(piece));
    let tasks = inputs.zip(sum.chunks_mut(piece)).zip(out.chunks(rows, width)).collect();
    type Task<'a> = (((&'a [f32], &'a [f32]), &'a mut [f32]), Outputs<'a>);
    for_tasks(tasks, |(((residual, branch), sum), out): Task<'_>| {
        simd(
            #[inline(always)]
            || {
                for ((sum, a), b) in sum.iter_mut().zip(residual).zip(branch) {
                    *sum = a + b;
                }
                normalise(sum, affine, out);
            },
        );
    });
}

impl<'a> Outputs<'a> {
    fn chunks(self, rows: usize, width: usize) -> impl Iterator<Item = Outputs<'a>> {
        let saved = self.mean.chunks_mut(rows).zip(self.rstd.chunks_mut(rows));
        let all = self.output.chunks_mut(rows * width).zip(saved);
        all.map(|(output, (mean, rstd))| Outputs { output, mean, rstd })
    }
}

#[inline(always)]
fn normalise(x: &[f32], affine: Affine<'_>, out: Outputs<'_>) {
    let width = affine.weight.len();
    let scale = 1.0 / width as f32;
    let rows = x.chunks_exact(width).zip(out.output.chunks_exact_mut(width));
    for ((x, y), (row_mean, row_rstd)) in rows.zip(out.mean.iter_mut().zip(out.rstd)) {
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
        (*row_mean, *row_rstd) = (mean, rstd);
    }
}

pub(super) fn backward_input(
    dy: &[f32],
    dsum: Option<&[f32]>,
    saved: Saved<'_>,
    weight: &[f32],
    dx: &mut [f32],
) {
    let width = weight.len();
    let rows_per_task = rows::per_task(width);
    for_pieces(dx, rows_per_task * width, |index, dx| {
        simd(
            #[inline(always)]
            || {
                for (row, dx) in dx.chunks_exact_mut(width).enumerate() {
                    let row = index * rows_per_task + row;
                    let span = row * width..(row + 1) * width;
                    let (mean, rstd) = (saved.mean[row], saved.rstd[row]);
                    row_gradient(&dy[span.clone()], &saved.x[span.clone()], weight, mean, rstd, dx);
                    if let Some(dsum) = dsum {
                        dx.iter_mut().zip(&dsum[span]).for_each(|(dx, dsum)| *dx += dsum);
                    }
                }
            },
        );
    });
}

/// dx = rstd · (g − mean(g) − x̂ · mean(g · x̂)) with g = dy · weight and x̂ = (x − mean) · rstd.
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

pub(super) fn backward_weight(dy: &[f32], saved: Saved<'_>, weight: &mut [f32], accumulate: bool) {
    let width = weight.len();
    columns::sum_rows(
        saved.mean.len(),
        weight,
        accumulate,
        #[inline(always)]
        |row, columns, sum| {
            let (mean, rstd) = (saved.mean[row], saved.rstd[row]);
            let (dy, x) = (&dy[row * width..][columns.clone()], &saved.x[row * width..][columns]);
            for ((sum, dy), x) in sum.iter_mut().zip(dy).zip(x) {
                *sum += dy * ((x - mean) * rstd);
            }
        },
    );
}

pub(super) fn backward_bias(dy: &[f32], bias: &mut [f32], accumulate: bool, rows: usize) {
    let width = bias.len();
    columns::sum_rows(
        rows,
        bias,
        accumulate,
        #[inline(always)]
        |row, columns, sum| {
            sum.iter_mut().zip(&dy[row * width..][columns]).for_each(|(sum, dy)| *sum += dy);
        },
    );
}
