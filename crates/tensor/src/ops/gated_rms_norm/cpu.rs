//! Gated RMS norm on the host.

use device::parallel::{for_pieces, for_tasks, simd};

use super::operands::{GateFunction, Gradients, Operands, Settings, runs};
use crate::ops::math::{exp, sum2};
use crate::ops::rms_norm::cpu::rstd;
use crate::ops::{GradientTarget, columns, rows};
use crate::{Result, Tensor};

/// Returns the gate's value and slope.
#[inline(always)]
fn gate(function: GateFunction, z: f32) -> [f32; 2] {
    let sigmoid = 1.0 / (1.0 + exp(-z));
    match function {
        GateFunction::Silu => [z * sigmoid, sigmoid * (1.0 + z * (1.0 - sigmoid))],
        GateFunction::Sigmoid => [sigmoid, sigmoid * (1.0 - sigmoid)],
    }
}

pub(super) fn forward(operands: Operands<'_>, settings: Settings, y: &Tensor) -> Result<()> {
    let x = operands.x.values()?;
    let z = operands.z.values()?;
    let weight = operands.weight.values()?;
    let x: &[f32] = &x;
    let z: &[f32] = &z;
    let weight: &[f32] = &weight;
    let width = weight.len();
    let per_task = rows::per_task(width) * width;
    for_pieces(&mut y.values_mut()?, per_task, |index, y| {
        simd(
            #[inline(always)]
            || {
                let heads = rows::piece(x, index, per_task).chunks_exact(width);
                let gates = rows::piece(z, index, per_task).chunks_exact(width);
                for ((y, x), z) in y.chunks_exact_mut(width).zip(heads).zip(gates) {
                    let rstd = rstd(x, settings.epsilon);
                    for (((y, x), z), weight) in y.iter_mut().zip(x).zip(z).zip(weight) {
                        *y = x * rstd * weight * gate(settings.function, *z)[0];
                    }
                }
            },
        );
    });
    Ok(())
}

pub(super) fn backward_input(
    dy: &Tensor,
    operands: Operands<'_>,
    [heads, width]: [usize; 2],
    settings: Settings,
    gradients: &Gradients,
) -> Result<()> {
    let x = operands.x.values()?;
    let z = operands.z.values()?;
    let weight = operands.weight.values()?;
    let dy = dy.values()?;
    let x: &[f32] = &x;
    let z: &[f32] = &z;
    let weight: &[f32] = &weight;
    let dy: &[f32] = &dy;
    let run = heads.div_ceil(runs(heads)) * width;
    let mut dx = gradients.x.values_mut()?;
    let mut dz = gradients.z.values_mut()?;
    let mut sums = gradients.sums.values_mut()?;
    sums.fill(0.0);
    let parts = dx.chunks_mut(run).zip(dz.chunks_mut(run)).zip(sums.chunks_exact_mut(width));
    let tasks = parts.enumerate().collect();
    type Task<'a> = (usize, ((&'a mut [f32], &'a mut [f32]), &'a mut [f32]));
    for_tasks(tasks, |(index, ((dx, dz), sums)): Task<'_>| {
        simd(
            #[inline(always)]
            || {
                let rows = dx.chunks_exact_mut(width).zip(dz.chunks_exact_mut(width));
                for (row, (dx, dz)) in rows.enumerate() {
                    let at = index * run + row * width;
                    let [x, z, dy] = [x, z, dy].map(|all| &all[at..at + width]);
                    let rstd = rstd(x, settings.epsilon);
                    for c in 0..width {
                        let [value, slope] = gate(settings.function, z[c]);
                        let normed = x[c] * rstd;
                        sums[c] += dy[c] * value * normed;
                        dz[c] = dy[c] * normed * weight[c] * slope;
                        dx[c] = dy[c] * weight[c] * value;
                    }
                    let mean = sum2(dx, x, |g, x| g * (x * rstd)) / width as f32;
                    for (dx, x) in dx.iter_mut().zip(x) {
                        *dx = rstd * (*dx - x * rstd * mean);
                    }
                }
            },
        );
    });
    Ok(())
}

pub(super) fn backward_weight(sums: &Tensor, weight: &GradientTarget) -> Result<()> {
    let [runs, width] = [sums.shape().rows(), sums.shape().columns()];
    let sums = sums.values()?;
    let sums: &[f32] = &sums;
    let mut out = weight.tensor.values_mut()?;
    columns::sum_rows(runs, &mut out, weight.accumulate, |row, columns, partial| {
        let from = &sums[row * width..][columns];
        partial.iter_mut().zip(from).for_each(|(partial, from)| *partial += from);
    });
    Ok(())
}
