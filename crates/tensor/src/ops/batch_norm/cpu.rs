//! Batch normalisation on the host. Sums over pixels are in f64.

use device::DType;
use device::parallel::{for_pieces, map, simd};

use super::output::{Affine, Passes, Saved};
use crate::host_values::Values;
use crate::ops::rows;
use crate::{Result, Tensor};

/// Rows that one task sums. The sums of tasks are added in order.
const GROUP: usize = 1024;

/// Computes mean and rstd of each channel, and with `record` mean and unbiased variance.
pub(super) fn statistics(
    x: &Tensor,
    [mean, rstd]: [&Tensor; 2],
    epsilon: f32,
    record: Option<&Tensor>,
) -> Result<()> {
    let rows = x.shape().rows();
    let channels = x.shape().columns();
    let x = x.values()?;
    let x: &[f32] = &x;
    let wide = |at: usize| f64::from(x[at]);
    let [sums, _] = sum_rows(rows, channels, |row, column| [wide(row * channels + column), 0.0]);
    let means: Vec<f64> = sums.iter().map(|sum| sum / rows as f64).collect();
    let [squares, _] = sum_rows(rows, channels, |row, column| {
        let off = wide(row * channels + column) - means[column];
        [off * off, 0.0]
    });
    let mut mean = mean.write::<f32>()?;
    let mut rstd = rstd.write::<f32>()?;
    for (channel, (value, square)) in means.iter().zip(&squares).enumerate() {
        mean[channel] = *value as f32;
        rstd[channel] = (1.0 / (square / rows as f64 + f64::from(epsilon)).sqrt()) as f32;
    }
    if let Some(record) = record {
        let mut record = record.write::<f32>()?;
        let (recorded_means, variances) = record.split_at_mut(channels);
        recorded_means.copy_from_slice(&mean);
        let unbiased = (rows - 1).max(1) as f64;
        variances
            .iter_mut()
            .zip(squares)
            .for_each(|(variance, square)| *variance = (square / unbiased) as f32);
    }
    Ok(())
}

/// Returns two sums over rows of each column's `term`s, added within groups of rows and then over groups in
/// order.
fn sum_rows(rows: usize, columns: usize, term: impl Fn(usize, usize) -> [f64; 2] + Sync) -> [Vec<f64>; 2] {
    let group = |index: usize| {
        let mut sums = [vec![0.0f64; columns], vec![0.0f64; columns]];
        let [first, second] = &mut sums;
        simd(
            #[inline(always)]
            || {
                for row in index * GROUP..rows.min((index + 1) * GROUP) {
                    for (column, (first, second)) in first.iter_mut().zip(&mut *second).enumerate() {
                        let [a, b] = term(row, column);
                        *first += a;
                        *second += b;
                    }
                }
            },
        );
        sums
    };
    let mut totals = [vec![0.0f64; columns], vec![0.0f64; columns]];
    for sums in map(rows.div_ceil(GROUP), group) {
        for (total, sum) in totals.iter_mut().zip(sums) {
            total.iter_mut().zip(sum).for_each(|(total, sum)| *total += sum);
        }
    }
    totals
}

/// Computes y = relu((x − mean) · rstd · weight + bias + residual).
pub(super) fn apply(
    x: &Tensor,
    residual: Option<&Tensor>,
    affine: Affine<'_>,
    [mean, rstd]: [&Tensor; 2],
    y: &Tensor,
) -> Result<()> {
    let mean = mean.read::<f32>()?;
    let rstd = rstd.read::<f32>()?;
    normalise(x, residual, affine, [&mean, &rstd], y)
}

/// Computes [`apply`] with running averages of mean and variance.
pub(super) fn evaluate(
    x: &Tensor,
    residual: Option<&Tensor>,
    affine: Affine<'_>,
    [mean, variance]: [&Tensor; 2],
    y: &Tensor,
) -> Result<()> {
    let mean = mean.read::<f32>()?;
    let variance = variance.read::<f32>()?;
    let rstd: Vec<_> = variance.iter().map(|variance| 1.0 / (variance + affine.epsilon).sqrt()).collect();
    normalise(x, residual, affine, [&mean, &rstd], y)
}

fn normalise(
    x: &Tensor,
    residual: Option<&Tensor>,
    affine: Affine<'_>,
    [mean, rstd]: [&[f32]; 2],
    y: &Tensor,
) -> Result<()> {
    let channels = mean.len();
    let per_task = rows::per_task(channels) * channels;
    let x = x.values()?;
    let weight = affine.weight.values()?;
    let bias = affine.bias.values()?;
    let scales: Vec<f32> = weight.iter().zip(rstd).map(|(weight, rstd)| weight * rstd).collect();
    let residual = residual.map(Tensor::values).transpose()?;
    let (x, bias, residual): (&[f32], &[f32], Option<&[f32]>) = (&x, &bias, residual.as_deref());
    for_pieces(&mut y.values_mut()?, per_task, |index, y| {
        let x = rows::piece(x, index, per_task);
        let residual = residual.map(|residual| rows::piece(residual, index, per_task));
        simd(
            #[inline(always)]
            || {
                for (at, (y, x)) in y.iter_mut().zip(x).enumerate() {
                    let channel = at % channels;
                    let mut value = (x - mean[channel]).mul_add(scales[channel], bias[channel]);
                    if let Some(residual) = residual {
                        value += residual[at];
                    }
                    // A comparison keeps NaN; a maximum would drop it.
                    *y = if affine.relu && value < 0.0 { 0.0 } else { value };
                }
            },
        );
    });
    Ok(())
}

/// Values from which ReLU's mask is computed, locked for reading.
enum MaskValues<'a> {
    Everywhere,
    Output(Values<'a>),
    Input { scales: Vec<f32>, bias: Values<'a>, vanishing: f32 },
}

impl<'a> MaskValues<'a> {
    fn read(saved: &Saved<'a>, weight: &Tensor, rstd: &[f32]) -> Result<Self> {
        Ok(match saved.passes {
            Passes::Everywhere => MaskValues::Everywhere,
            Passes::ByOutput(output) => MaskValues::Output(output.values()?),
            Passes::ByInput { bias } => MaskValues::Input {
                scales: weight.values()?.iter().zip(rstd).map(|(weight, rstd)| weight * rstd).collect(),
                bias: bias.values()?,
                vanishing: vanishing(saved.x.dtype()),
            },
        })
    }

    fn mask<'m>(&'m self, mean: &'m [f32]) -> Mask<'m> {
        match self {
            MaskValues::Everywhere => Mask::Everywhere,
            MaskValues::Output(output) => Mask::Output(output),
            MaskValues::Input { scales, bias, vanishing } => {
                Mask::Input { mean, scales, bias, vanishing: *vanishing }
            }
        }
    }
}

/// ReLU's mask: where the gradient of its output passes.
#[derive(Clone, Copy)]
enum Mask<'a> {
    Everywhere,
    Output(&'a [f32]),
    Input { mean: &'a [f32], scales: &'a [f32], bias: &'a [f32], vanishing: f32 },
}

impl Mask<'_> {
    /// Returns whether the gradient passes at element `at` of channel `channel`, where the input is `x`.
    #[inline(always)]
    fn passes(self, at: usize, channel: usize, x: f32) -> bool {
        match self {
            Mask::Everywhere => true,
            Mask::Output(output) => output[at] > 0.0,
            Mask::Input { mean, scales, bias, vanishing } => {
                (x - mean[channel]).mul_add(scales[channel], bias[channel]) > vanishing
            }
        }
    }
}

/// Returns the largest number that rounds to 0 in `dtype`.
fn vanishing(dtype: DType) -> f32 {
    match dtype {
        DType::Bf16 => 2.0_f32.powi(-134),
        DType::F16 => 2.0_f32.powi(-25),
        _ => 0.0,
    }
}

/// Computes sums[0] = Σ g · (x − mean) · rstd and sums[1] = Σ g, where g is `dy` masked by ReLU. Also writes
/// g to `masked`, which may be `dy`.
pub(super) fn sums(
    dy: &Tensor,
    saved: Saved<'_>,
    weight: &Tensor,
    masked: Option<&Tensor>,
    sums: &Tensor,
) -> Result<()> {
    let Saved { x, mean, rstd, .. } = saved;
    let rows = x.shape().rows();
    let channels = x.shape().columns();
    let mean = mean.read::<f32>()?;
    let rstd = rstd.read::<f32>()?;
    let (mean, rstd): (&[f32], &[f32]) = (&mean, &rstd);
    let x = x.values()?;
    let x: &[f32] = &x;
    let mask = MaskValues::read(&saved, weight, rstd)?;
    let mask = mask.mask(mean);
    if let Some(masked) = masked {
        if !masked.shares_storage(dy) {
            masked.copy_from(dy)?;
        }
        for (at, g) in masked.values_mut()?.iter_mut().enumerate() {
            *g = if mask.passes(at, at % channels, x[at]) { *g } else { 0.0 };
        }
    }
    let (dy, mask) = masked.map_or((dy, mask), |masked| (masked, Mask::Everywhere));
    let dy = dy.values()?;
    let dy: &[f32] = &dy;
    let [products, plain] = sum_rows(rows, channels, |row, column| {
        let at = row * channels + column;
        let g = if mask.passes(at, column, x[at]) { f64::from(dy[at]) } else { 0.0 };
        let normal = (x[at] - mean[column]) * rstd[column];
        [g * f64::from(normal), g]
    });
    let mut sums = sums.write::<f32>()?;
    let values = products.into_iter().chain(plain);
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = value as f32);
    Ok(())
}

/// Computes dx = weight · rstd · (g − sums[1] / rows − (x − mean) · rstd · sums[0] / rows). `dx` may be `dy`.
pub(super) fn input_gradient(
    dy: &Tensor,
    saved: Saved<'_>,
    weight: &Tensor,
    sums: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let Saved { x, mean, rstd, .. } = saved;
    if !dx.shares_storage(dy) {
        dx.copy_from(dy)?;
    }
    let rows = x.shape().rows();
    let channels = x.shape().columns();
    let mean = mean.read::<f32>()?;
    let rstd = rstd.read::<f32>()?;
    let sums = sums.read::<f32>()?;
    let (mean, rstd, sums): (&[f32], &[f32], &[f32]) = (&mean, &rstd, &sums);
    let mask = MaskValues::read(&saved, weight, rstd)?;
    let mask = mask.mask(mean);
    let x = x.values()?;
    let weight = weight.values()?;
    let (x, weight): (&[f32], &[f32]) = (&x, &weight);
    let scale = 1.0 / rows as f32;
    let per_task = rows::per_task(channels) * channels;
    for_pieces(&mut dx.values_mut()?, per_task, |index, dx| {
        let x = rows::piece(x, index, per_task);
        for (at, (dx, x)) in dx.iter_mut().zip(x).enumerate() {
            let channel = at % channels;
            let g = if mask.passes(index * per_task + at, channel, *x) { *dx } else { 0.0 };
            let normal = (x - mean[channel]) * rstd[channel];
            let off = g - sums[channels + channel] * scale - normal * (sums[channel] * scale);
            *dx = weight[channel] * rstd[channel] * off;
        }
    });
    Ok(())
}

/// Computes target += sum, rounded once.
pub(super) fn add(sum: &Tensor, target: &Tensor) -> Result<()> {
    let sum = sum.read::<f32>()?;
    let mut target = target.values_mut()?;
    target.iter_mut().zip(sum.iter()).for_each(|(target, sum)| *target += sum);
    Ok(())
}
