//! Gates of the delta rule on the host.

use device::parallel::for_pieces;

use super::operands::{Gates, Operands, Sizes};
use crate::ops::{GradientTarget, rows};
use crate::{Result, Tensor};

/// Returns log(1 + e^x).
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { libm::log1pf(libm::expf(x)) }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

/// Calls `f` with the index and the elements of each row of `out`.
fn each_row(out: &Tensor, columns: usize, f: impl Fn(usize, &mut [f32]) + Sync) -> Result<()> {
    let per_task = rows::per_task(columns);
    for_pieces(&mut out.values_mut()?, per_task * columns, |index, out| {
        out.chunks_exact_mut(columns).enumerate().for_each(|(row, out)| f(index * per_task + row, out));
    });
    Ok(())
}

pub(super) fn forward(
    operands: Operands<'_>,
    sizes: Sizes,
    factor: f32,
    gates: &Gates<Tensor>,
) -> Result<()> {
    let a = operands.a.values()?;
    let b = operands.b.values()?;
    let log_speed = operands.log_speed.values()?;
    let bias = operands.bias.values()?;
    let a: &[f32] = &a;
    let b: &[f32] = &b;
    let log_speed: &[f32] = &log_speed;
    let bias: &[f32] = &bias;
    each_row(&gates.decay, sizes.decays, |row, out| {
        for (c, out) in out.iter_mut().enumerate() {
            let speed = libm::expf(log_speed[c / sizes.channels()]);
            *out = -speed * softplus(a[row * sizes.decays + c] + bias[c]);
        }
    })?;
    each_row(&gates.rate, sizes.heads, |row, out| {
        let b = &b[row * sizes.heads..];
        out.iter_mut().zip(b).for_each(|(out, b)| *out = factor * sigmoid(*b));
    })
}

pub(super) fn backward_input(
    gradients: &Gates<&Tensor>,
    operands: Operands<'_>,
    sizes: Sizes,
    factor: f32,
    inputs: &Gates<Tensor>,
) -> Result<()> {
    let a = operands.a.values()?;
    let b = operands.b.values()?;
    let log_speed = operands.log_speed.values()?;
    let bias = operands.bias.values()?;
    let ddecay = gradients.decay.values()?;
    let drate = gradients.rate.values()?;
    let a: &[f32] = &a;
    let b: &[f32] = &b;
    let log_speed: &[f32] = &log_speed;
    let bias: &[f32] = &bias;
    let ddecay: &[f32] = &ddecay;
    let drate: &[f32] = &drate;
    each_row(&inputs.decay, sizes.decays, |row, out| {
        for (c, out) in out.iter_mut().enumerate() {
            let speed = libm::expf(log_speed[c / sizes.channels()]);
            let at = row * sizes.decays + c;
            *out = -speed * sigmoid(a[at] + bias[c]) * ddecay[at];
        }
    })?;
    each_row(&inputs.rate, sizes.heads, |row, out| {
        for (h, out) in out.iter_mut().enumerate() {
            let value = sigmoid(b[row * sizes.heads + h]);
            *out = factor * value * (1.0 - value) * drate[row * sizes.heads + h];
        }
    })
}

pub(super) fn backward_weight(
    ddecay: &Tensor,
    operands: Operands<'_>,
    sizes: Sizes,
    [log_speed, bias]: [&GradientTarget; 2],
) -> Result<()> {
    let a = operands.a.values()?;
    let speeds = operands.log_speed.values()?;
    let biases = operands.bias.values()?;
    let ddecay = ddecay.values()?;
    let a: &[f32] = &a;
    let speeds: &[f32] = &speeds;
    let biases: &[f32] = &biases;
    let ddecay: &[f32] = &ddecay;
    // Sums over rows in f64, rounded once.
    let sum = |c: usize, term: &dyn Fn(f32) -> f32| -> f64 {
        let row = |row: usize| {
            let at = row * sizes.decays + c;
            f64::from(term(a[at] + biases[c])) * f64::from(ddecay[at])
        };
        (0..sizes.rows).map(row).sum::<f64>() * -f64::from(libm::expf(speeds[c / sizes.channels()]))
    };
    let write = |target: &GradientTarget, value: &dyn Fn(usize) -> f64| -> Result<()> {
        let mut out = target.tensor.values_mut()?;
        for (index, out) in out.iter_mut().enumerate() {
            let before = if target.accumulate { f64::from(*out) } else { 0.0 };
            *out = (before + value(index)) as f32;
        }
        Ok(())
    };
    write(bias, &|c| sum(c, &sigmoid))?;
    let channels = sizes.channels();
    write(log_speed, &|h| (h * channels..(h + 1) * channels).map(|c| sum(c, &softplus)).sum())
}
