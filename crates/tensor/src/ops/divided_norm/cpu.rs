//! RMS norms of divided rows on the host.

use device::parallel::{for_pieces, simd};

use super::saved::Saved;
use crate::ops::math::{sum, sum2};
use crate::ops::rows;
use crate::{Result, Tensor};

/// Rows of a task that computes one number per row.
const ROWS: usize = 64;

pub(super) fn squares(x: &Tensor, sums: &Tensor) -> Result<()> {
    let width = x.shape().columns();
    let x = x.values()?;
    let x: &[f32] = &x;
    each_row(&mut sums.values_mut()?, |row| sum(&x[row * width..][..width], |x| x * x));
    Ok(())
}

pub(super) fn rstd(sums: &Tensor, columns: usize, epsilon: f32) -> Result<()> {
    let mut sums = sums.values_mut()?;
    sums.iter_mut().for_each(|sum| *sum = 1.0 / (*sum / columns as f32 + epsilon).sqrt());
    Ok(())
}

pub(super) fn forward(x: &Tensor, weight: &Tensor, rstd: &Tensor, y: &Tensor) -> Result<()> {
    let width = x.shape().columns();
    let x = x.values()?;
    let weight = weight.values()?;
    let rstd = rstd.values()?;
    let [x, weight, rstd]: [&[f32]; 3] = [&x, &weight, &rstd];
    each_row_of(&mut y.values_mut()?, width, |row, y| {
        let x = &x[row * width..][..width];
        let rstd = rstd[row];
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = x * rstd * weight;
        }
    });
    Ok(())
}

pub(super) fn products(dy: &Tensor, Saved { x, weight, rstd }: Saved<'_>, sums: &Tensor) -> Result<()> {
    let width = x.shape().columns();
    let dy = dy.values()?;
    let x = x.values()?;
    let weight = weight.values()?;
    let rstd = rstd.values()?;
    let [dy, x, weight, rstd]: [&[f32]; 4] = [&dy, &x, &weight, &rstd];
    each_row(&mut sums.values_mut()?, |row| {
        let dy = &dy[row * width..][..width];
        let x = &x[row * width..][..width];
        let scaled: Vec<f32> = dy.iter().zip(weight).map(|(dy, weight)| dy * weight).collect();
        sum2(&scaled, x, |g, x| g * (x * rstd[row]))
    });
    Ok(())
}

pub(super) fn backward_input(
    dy: &Tensor,
    Saved { x, weight, rstd }: Saved<'_>,
    sums: &Tensor,
    columns: usize,
    dx: &Tensor,
) -> Result<()> {
    let width = x.shape().columns();
    let dy = dy.values()?;
    let x = x.values()?;
    let weight = weight.values()?;
    let rstd = rstd.values()?;
    let sums = sums.values()?;
    let [dy, x, weight, rstd, sums]: [&[f32]; 5] = [&dy, &x, &weight, &rstd, &sums];
    each_row_of(&mut dx.values_mut()?, width, |row, dx| {
        let dy = &dy[row * width..][..width];
        let x = &x[row * width..][..width];
        let rstd = rstd[row];
        let mean = sums[row] / columns as f32;
        for (((dx, dy), x), weight) in dx.iter_mut().zip(dy).zip(x).zip(weight) {
            *dx = rstd * (dy * weight - x * rstd * mean);
        }
    });
    Ok(())
}

/// Sets the number of every row.
fn each_row(numbers: &mut [f32], compute: impl Fn(usize) -> f32 + Sync) {
    for_pieces(numbers, ROWS, |index, numbers| {
        simd(
            #[inline(always)]
            || numbers.iter_mut().enumerate().for_each(|(row, number)| *number = compute(index * ROWS + row)),
        );
    });
}

/// Calls `write` with the index and the elements of every row of an array.
fn each_row_of(array: &mut [f32], width: usize, write: impl Fn(usize, &mut [f32]) + Sync) {
    let per_task = rows::per_task(width);
    for_pieces(array, per_task * width, |index, piece| {
        simd(
            #[inline(always)]
            || {
                let rows = piece.chunks_exact_mut(width).enumerate();
                rows.for_each(|(row, values)| write(index * per_task + row, values));
            },
        );
    });
}
