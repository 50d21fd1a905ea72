//! RMS normalisation on the host: one task for a block of rows, each row read from the cache after its first
//! pass.

use device::parallel::{for_pieces, for_tasks, simd};

use crate::ops::math::{sum, sum2};
use crate::ops::{columns, rows};

/// Results of the forward pass.
pub(super) struct Outputs<'a> {
    pub(super) output: &'a mut [f32],
    pub(super) rstd: &'a mut [f32],
}

/// Tensors saved by the forward pass.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a> {
    pub(super) x: &'a [f32],
    pub(super) rstd: &'a [f32],
}

pub(super) fn forward(x: &[f32], weight: &[f32], epsilon: f32, out: Outputs<'_>) {
    let width = weight.len();
    let rows = rows::per_task(width);
    let tasks = x.chunks(rows * width).zip(out.chunks(rows, width)).collect();
    for_tasks(tasks, |(x, out): (&[f32], Outputs<'_>)| {
        simd(
            #[inline(always)]
            || normalise(x, weight, epsilon, out),
        );
    });
}

pub(super) fn forward_residual(
    residual: &[f32],
    branch: &[f32],
    weight: &[f32],
    epsilon: f32,
    sum: &mut [f32],
    out: Outputs<'_>,
) {
    let width = weight.len();
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
                normalise(sum, weight, epsilon, out);
            },
        );
    });
}

impl<'a> Outputs<'a> {
    fn chunks(self, rows: usize, width: usize) -> impl Iterator<Item = Outputs<'a>> {
        let all = self.output.chunks_mut(rows * width).zip(self.rstd.chunks_mut(rows));
        all.map(|(output, rstd)| Outputs { output, rstd })
    }
}

#[inline(always)]
fn normalise(x: &[f32], weight: &[f32], epsilon: f32, out: Outputs<'_>) {
    let width = weight.len();
    let rows = x.chunks_exact(width).zip(out.output.chunks_exact_mut(width));
    for ((x, y), row_rstd) in rows.zip(out.rstd.iter_mut()) {
        let rstd = rstd(x, epsilon);
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = x * rstd * weight;
        }
        *row_rstd = rstd;
    }
}

/// Reciprocal root mean square of a row.
#[inline(always)]
pub(in crate::ops) fn rstd(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (sum(x, |v| v * v) / x.len() as f32 + epsilon).sqrt()
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
                    dx.copy_from_slice(&dy[span.clone()]);
                    row_gradient(&saved.x[span.clone()], saved.rstd[row], weight, dx);
                    if let Some(dsum) = dsum {
                        dx.iter_mut().zip(&dsum[span]).for_each(|(dx, dsum)| *dx += dsum);
                    }
                }
            },
        );
    });
}

/// Replaces the gradient of a row's output by that of its input: rstd · (g − x̂ · mean(g · x̂)) with g = dy ·
/// weight and x̂ = x · rstd.
#[inline(always)]
pub(in crate::ops) fn row_gradient(x: &[f32], rstd: f32, weight: &[f32], dx: &mut [f32]) {
    dx.iter_mut().zip(weight).for_each(|(dx, weight)| *dx *= weight);
    let mean = sum2(dx, x, |g, x| g * (x * rstd)) / x.len() as f32;
    for (dx, x) in dx.iter_mut().zip(x) {
        *dx = rstd * (*dx - x * rstd * mean);
    }
}

pub(super) fn backward_weight(dy: &[f32], saved: Saved<'_>, weight: &mut [f32], accumulate: bool) {
    let width = weight.len();
    columns::sum_rows(
        saved.rstd.len(),
        weight,
        accumulate,
        #[inline(always)]
        |row, columns, sum| {
            let rstd = saved.rstd[row];
            let (dy, x) = (&dy[row * width..][columns.clone()], &saved.x[row * width..][columns]);
            for ((sum, dy), x) in sum.iter_mut().zip(dy).zip(x) {
                *sum += dy * (x * rstd);
            }
        },
    );
}
