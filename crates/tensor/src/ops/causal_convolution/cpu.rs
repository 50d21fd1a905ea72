//! Causal convolutions on the host. Each sum has the order of the GPU's, but for those over rows.

use std::ops::Range;

use device::parallel::{for_pieces, for_tasks, simd};

use crate::ops::activation::{Elementary, Silu};
use crate::ops::rows;

/// Channels that are computed together.
const TILE: usize = 64;
/// Rows that are summed before they are added to the total.
const GROUP: usize = 64;
/// Maximum width of a convolution.
const TAPS: usize = 4;

/// Values of the operands, and sizes.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) weight_ck: &'a [f32],
    pub(super) bias_c: Option<&'a [f32]>,
    pub(super) documents_bl: Option<&'a [u32]>,
    pub(super) halo: Option<&'a [f32]>,
    pub(super) time: usize,
    pub(super) channels: usize,
    pub(super) width: usize,
    pub(super) silu: bool,
}

/// Values of one target, and whether sums are added to them.
type Target<'a> = (&'a mut [f32], bool);

impl Operands<'_> {
    /// Returns the number of rows before `row` that it reads.
    #[inline(always)]
    fn reach(&self, row: usize) -> usize {
        let first = self.documents_bl.map_or(0, |documents| documents[row]);
        let position = ((row % self.time) as u32).wrapping_sub(first);
        (position as usize).min(self.width - 1)
    }

    /// Calls `each(index, weight)` with the weight of the input `lag` rows earlier, for each channel of
    /// `columns`.
    #[inline(always)]
    fn each_weight(&self, columns: &Range<usize>, lag: usize, mut each: impl FnMut(usize, f32)) {
        let weights = &self.weight_ck[columns.start * self.width..columns.end * self.width];
        let taps = weights.chunks_exact(self.width).enumerate();
        taps.for_each(|(index, weights)| each(index, weights[self.width - 1 - lag]));
    }

    /// Computes the convolution of channels `columns` before SiLU. `input(lag)` returns the channels of the
    /// row `lag` rows before.
    #[inline(always)]
    fn sum<'x>(
        &self,
        columns: &Range<usize>,
        reach: usize,
        input: impl Fn(usize) -> &'x [f32],
        out: &mut [f32],
    ) {
        match self.bias_c {
            Some(bias) => out.copy_from_slice(&bias[columns.clone()]),
            None => out.fill(0.0),
        }
        for lag in (0..=reach).rev() {
            let x = &input(lag)[..out.len()];
            self.each_weight(columns, lag, |index, weight| {
                out[index] = weight.mul_add(x[index], out[index]);
            });
        }
    }

    /// Returns channels of the row `lag` rows before `row`, which may be one of the halo.
    #[inline(always)]
    fn input<'x>(&'x self, x_blc: &'x [f32], row: usize, lag: usize, columns: &Range<usize>) -> &'x [f32] {
        let at = row % self.time;
        match self.halo {
            Some(halo) if lag > at => {
                let end = (row / self.time + 1) * (self.width - 1);
                &halo[(end + at - lag) * self.channels..][columns.clone()]
            }
            _ => &x_blc[(row - lag) * self.channels..][columns.clone()],
        }
    }

    /// Computes [`Operands::sum`] of a row of `x_blc`.
    #[inline(always)]
    fn row_sum(&self, x_blc: &[f32], row: usize, columns: &Range<usize>, out: &mut [f32]) {
        self.sum(columns, self.reach(row), |lag| self.input(x_blc, row, lag, columns), out);
    }

    /// Writes the gradient of [`Operands::row_sum`] to `out`.
    #[inline(always)]
    fn slope(&self, [dy, x]: [&[f32]; 2], row: usize, columns: &Range<usize>, out: &mut [f32]) {
        let dy = &dy[row * self.channels..][columns.clone()];
        if !self.silu {
            return out.copy_from_slice(dy);
        }
        self.row_sum(x, row, columns, out);
        out.iter_mut().zip(dy).for_each(|(out, dy)| *out = Silu::gradient(*dy, *out));
    }

    fn activate(&self, y: &mut [f32]) {
        if self.silu {
            y.iter_mut().for_each(|y| *y = Silu::value(*y));
        }
    }

    pub(super) fn forward(&self, x_blc: &[f32], y_blc: &mut [f32]) {
        let per_task = rows::per_task(self.channels);
        for_pieces(y_blc, per_task * self.channels, |index, y| {
            simd(
                #[inline(always)]
                || {
                    for (row, y) in y.chunks_exact_mut(self.channels).enumerate() {
                        self.row_sum(x_blc, index * per_task + row, &(0..self.channels), y);
                        self.activate(y);
                    }
                },
            );
        });
    }

    pub(super) fn backward_input(&self, dy_blc: &[f32], x_blc: &[f32], dx_blc: &mut [f32]) {
        let rows = x_blc.len() / self.channels;
        let per_task = rows::per_task(self.channels);
        for_pieces(dx_blc, per_task * self.channels, |index, dx| {
            simd(
                #[inline(always)]
                || {
                    let first = index * per_task;
                    let end = first + dx.len() / self.channels;
                    dx.fill(0.0);
                    for row in first..rows.min(end + self.width - 1) {
                        let inside = self.reach(row).min(row % self.time);
                        let lags = (row + 1).saturating_sub(end)..=inside.min(row - first);
                        for start in (0..self.channels).step_by(TILE) {
                            let columns = start..self.channels.min(start + TILE);
                            let mut tile = [0.0; TILE];
                            let slope = &mut tile[..columns.len()];
                            self.slope([dy_blc, x_blc], row, &columns, slope);
                            for lag in lags.clone() {
                                let dx = &mut dx[(row - lag - first) * self.channels..][columns.clone()];
                                self.each_weight(&columns, lag, |index, weight| {
                                    dx[index] = weight.mul_add(slope[index], dx[index]);
                                });
                            }
                        }
                    }
                },
            );
        });
    }

    /// Writes the gradient of the halo.
    pub(super) fn backward_halo(&self, dy_blc: &[f32], x_blc: &[f32], dhalo: &mut [f32]) {
        let kept = self.width - 1;
        for_pieces(dhalo, kept * self.channels, |sequence, dhalo| {
            dhalo.fill(0.0);
            let mut slope = vec![0.0; self.channels];
            for at in 0..kept.min(self.time) {
                let row = sequence * self.time + at;
                let columns = 0..self.channels;
                self.slope([dy_blc, x_blc], row, &columns, &mut slope);
                for lag in at + 1..=self.reach(row) {
                    let dhalo = &mut dhalo[(kept + at - lag) * self.channels..][..self.channels];
                    self.each_weight(&columns, lag, |index, weight| {
                        dhalo[index] = weight.mul_add(slope[index], dhalo[index]);
                    });
                }
            }
        });
    }

    pub(super) fn backward_weight(
        &self,
        dy_blc: &[f32],
        x_blc: &[f32],
        (weight_ck, adds): Target<'_>,
        bias: Option<Target<'_>>,
    ) {
        let (bias_c, adds_bias) = bias.unzip();
        let mut biases = bias_c.map(|bias| bias.chunks_mut(TILE));
        let weights = weight_ck.chunks_mut(TILE * self.width).enumerate();
        let tasks = weights.map(|task| (task, biases.as_mut().and_then(Iterator::next))).collect();
        for_tasks(tasks, |((index, weight), bias): ((usize, &mut [f32]), Option<&mut [f32]>)| {
            simd(
                #[inline(always)]
                || {
                    let columns = index * TILE..index * TILE + weight.len() / self.width;
                    let [sums @ .., bias_sums] = self.weight_sums([dy_blc, x_blc], &columns);
                    for (column, weights) in weight.chunks_exact_mut(self.width).enumerate() {
                        for (tap, weight) in weights.iter_mut().enumerate() {
                            let sum = sums[self.width - 1 - tap][column];
                            *weight = if adds { *weight + sum } else { sum };
                        }
                    }
                    for (bias, sum) in bias.unwrap_or_default().iter_mut().zip(bias_sums) {
                        *bias = if adds_bias.unwrap_or_default() { *bias + sum } else { sum };
                    }
                },
            );
        });
    }

    /// Returns the sums over rows of the gradients of the weights of `columns` by lag, then of the bias.
    #[inline(always)]
    fn weight_sums(&self, [dy, x]: [&[f32]; 2], columns: &Range<usize>) -> [[f32; TILE]; TAPS + 1] {
        let rows = x.len() / self.channels;
        let mut totals = [[0.0; TILE]; TAPS + 1];
        for first in (0..rows).step_by(GROUP) {
            let mut partial = [[0.0; TILE]; TAPS + 1];
            for row in first..rows.min(first + GROUP) {
                let mut tile = [0.0; TILE];
                let slope = &mut tile[..columns.len()];
                self.slope([dy, x], row, columns, slope);
                for (lag, sums) in partial.iter_mut().enumerate().take(self.reach(row) + 1) {
                    let x = self.input(x, row, lag, columns);
                    for ((sum, slope), x) in sums.iter_mut().zip(&*slope).zip(x) {
                        *sum = slope.mul_add(*x, *sum);
                    }
                }
                partial[TAPS].iter_mut().zip(&*slope).for_each(|(sum, slope)| *sum += slope);
            }
            for (total, partial) in totals.iter_mut().flatten().zip(partial.iter().flatten()) {
                *total += partial;
            }
        }
        totals
    }

    pub(super) fn step(&self, x_blc: &[f32], state: &mut [f32], y_blc: &mut [f32]) {
        let channels = self.channels;
        y_blc.fill(0.0);
        let rows = x_blc.chunks_exact(channels).zip(y_blc.chunks_exact_mut(channels));
        let slots = state.chunks_exact_mut((self.width - 1) * channels);
        for (row, ((x, y), state)) in rows.zip(slots).enumerate() {
            let input = |lag: usize| match lag {
                0 => x,
                _ => &state[(self.width - 1 - lag) * channels..],
            };
            self.sum(&(0..channels), self.reach(row), input, y);
            self.activate(y);
            state.copy_within(channels.., 0);
            state[(self.width - 2) * channels..].copy_from_slice(x);
        }
    }
}
