//! Loops over rows on the host, one task per block of rows. After its first pass a row is read from the
//! cache.

use device::parallel::{for_pieces, for_tasks, simd};

use crate::ops::{columns, rows};

/// Results of the forward pass: the output, and `S` statistics per row.
pub(in crate::ops) struct Outputs<'a, const S: usize> {
    pub(in crate::ops) output: &'a mut [f32],
    pub(in crate::ops) statistics: [&'a mut [f32]; S],
}

impl<'a, const S: usize> Outputs<'a, S> {
    fn chunks(self, rows: usize, width: usize) -> impl Iterator<Item = Outputs<'a, S>> {
        let mut statistics = self.statistics.map(|statistic| statistic.chunks_mut(rows));
        self.output.chunks_mut(rows * width).map(move |output| {
            let statistics = statistics.each_mut().map(|chunks| chunks.next().unwrap_or_default());
            Outputs { output, statistics }
        })
    }
}

/// Normalises the rows of `x_td`. `row(x, y)` writes a row of the output and returns its statistics.
pub(in crate::ops) fn forward<const S: usize>(
    x_td: &[f32],
    width: usize,
    out: Outputs<'_, S>,
    row: impl Fn(&[f32], &mut [f32]) -> [f32; S] + Sync,
) {
    let rows = rows::per_task(width);
    let tasks = x_td.chunks(rows * width).zip(out.chunks(rows, width)).collect();
    for_tasks(tasks, |(x, out): (&[f32], Outputs<'_, S>)| {
        simd(
            #[inline(always)]
            || normalise(x, width, out, &row),
        );
    });
}

#[inline(always)]
fn normalise<const S: usize>(
    x: &[f32],
    width: usize,
    out: Outputs<'_, S>,
    row: &impl Fn(&[f32], &mut [f32]) -> [f32; S],
) {
    let Outputs { output, mut statistics } = out;
    for (index, (x, y)) in x.chunks_exact(width).zip(output.chunks_exact_mut(width)).enumerate() {
        let values = row(x, y);
        statistics.iter_mut().zip(values).for_each(|(statistic, value)| statistic[index] = value);
    }
}

/// Computes the input's gradient and adds `dsum_td`. `row(index, dy, x, dx)` writes one row.
pub(in crate::ops) fn backward_input(
    dy_td: &[f32],
    dsum_td: Option<&[f32]>,
    x_td: &[f32],
    width: usize,
    dx_td: &mut [f32],
    row: impl Fn(usize, &[f32], &[f32], &mut [f32]) + Sync,
) {
    let rows_per_task = rows::per_task(width);
    for_pieces(dx_td, rows_per_task * width, |index, dx| {
        simd(
            #[inline(always)]
            || {
                for (number, dx) in dx.chunks_exact_mut(width).enumerate() {
                    let number = index * rows_per_task + number;
                    let span = number * width..(number + 1) * width;
                    row(number, &dy_td[span.clone()], &x_td[span.clone()], dx);
                    if let Some(dsum) = dsum_td {
                        dx.iter_mut().zip(&dsum[span]).for_each(|(dx, dsum)| *dx += dsum);
                    }
                }
            },
        );
    });
}

/// Computes weight (+)= Σ over rows of dy · x̂, where `normalised(row)` returns the function from x to x̂.
pub(in crate::ops) fn backward_weight<N: Fn(f32) -> f32>(
    dy_td: &[f32],
    x_td: &[f32],
    weight_d: &mut [f32],
    accumulate: bool,
    normalised: impl Fn(usize) -> N + Sync,
) {
    let width = weight_d.len();
    columns::sum_rows(
        x_td.len() / width,
        weight_d,
        accumulate,
        #[inline(always)]
        |row, columns, sum| {
            let normalised = normalised(row);
            let dy = &dy_td[row * width..][columns.clone()];
            let x = &x_td[row * width..][columns];
            for ((sum, dy), x) in sum.iter_mut().zip(dy).zip(x) {
                *sum += dy * normalised(*x);
            }
        },
    );
}
