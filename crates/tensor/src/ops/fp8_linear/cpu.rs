//! FP8 on the host: the same codes and factors as on a GPU, and sums in f32.

use device::parallel::{for_pieces, simd};
use device::{DType, E4m3, E5m2, Element, Float, Fp8, dispatch};

use super::call::{Call, SUMMED_ROWS};
use super::input::Input;
use super::quantised::{Quantised, Recipe, Scaled};
use crate::ops::activation::{Elementary, with_function};
use crate::ops::{GradientTarget, check, columns, rows};
use crate::{Result, Tensor};

/// Bits of 2⁻¹⁰⁰. Smaller magnitudes are treated as this one, so that the reciprocal of the factor is finite.
const TINY: u32 = 27 << 23;

/// Evaluates an expression with `$F` as the host type of an FP8 format.
macro_rules! with_format {
    ($format:expr, $F:ident => $body:expr) => {
        match $format {
            DType::E5m2 => {
                type $F = E5m2;
                $body
            }
            _ => {
                type $F = E4m3;
                $body
            }
        }
    };
}

/// Returns the bits of |value|. They order as magnitudes do, with NaN above all numbers.
fn magnitude(value: f32) -> u32 {
    value.abs().to_bits()
}

/// Returns the factor that decodes codes, for a largest magnitude with bits `largest`.
pub(crate) fn inverse<F: Fp8>(largest: u32) -> f32 {
    if largest == 0 { 1.0 } else { f32::from_bits(largest.max(TINY)) / F::LARGEST }
}

/// Returns the rows and columns of a layer's input, computed from the stored tensor.
fn values<T: Float>(x: &[T], call: &Call<'_>) -> Vec<f32> {
    let Call { input, columns, .. } = *call;
    let mut values = vec![0.0; call.rows * columns];
    let per_task = rows::per_task(columns);
    for_pieces(&mut values, per_task * columns, |index, values| {
        let stored = rows::piece(x, index, per_task * columns * input.parts());
        match input {
            Input::Plain => T::widen(stored, values),
            Input::Activated(activation) => with_function!(activation, F => simd(
                #[inline(always)]
                || for (value, x) in values.iter_mut().zip(stored) {
                    *value = T::from_f32(F::value(x.to_f32())).to_f32();
                },
            )),
            Input::Gated(activation) => with_function!(activation, F => simd(
                #[inline(always)]
                || {
                    let pairs = stored.chunks_exact(2 * columns);
                    for (values, pair) in values.chunks_exact_mut(columns).zip(pairs) {
                        let (gate, up) = pair.split_at(columns);
                        for ((value, gate), up) in values.iter_mut().zip(gate).zip(up) {
                            *value = T::from_f32(F::value(gate.to_f32()) * up.to_f32()).to_f32();
                        }
                    }
                },
            )),
        }
    });
    values
}

/// Writes the largest magnitude to the first of `cells`, and zeros to the others.
pub(super) fn measure(call: &Call<'_>, cells: &Tensor) -> Result<()> {
    let mut cells = cells.write::<u32>()?;
    cells.fill(0);
    dispatch!(
        call.x.dtype(),
        T => {
            let x = call.x.read::<T>()?;
            cells[0] = x.iter().map(|value| magnitude(value.to_f32())).max().unwrap_or(0);
            Ok(())
        },
        _ => Err(check::unsupported(call.operator, "x", call.x)),
    )
}

/// Casts into the layouts of `output`. Also computes their factors unless these are known, and the column
/// sums.
pub(super) fn quantise(call: &Call<'_>, output: &Quantised) -> Result<()> {
    dispatch!(
        call.x.dtype(),
        T => {
            let x = call.x.read::<T>()?;
            let values = values(&x, call);
            if let Some(layout) = &output.stored {
                with_format!(layout.values.dtype(), F => cast::<F>(call, &values, call.columns, layout)?);
            }
            if let Some(layout) = &output.transposed {
                let values = transposed(&values, call.columns);
                with_format!(layout.values.dtype(), F => cast::<F>(call, &values, call.rows, layout)?);
            }
            call.sums.map_or(Ok(()), |sums| add(call, &values, sums))
        },
        _ => Err(check::unsupported(call.operator, "x", call.x)),
    )
}

fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns)).copied().collect()
}

/// Casts `values`, rows of `columns` elements.
fn cast<F: Fp8 + Element>(call: &Call<'_>, values: &[f32], columns: usize, layout: &Scaled) -> Result<()> {
    let row_of = |row: usize| &values[row * columns..][..columns];
    let largest_of = |values: &[f32]| values.iter().map(|value| magnitude(*value)).max().unwrap_or(0);
    if !call.has_factors {
        let mut factors = layout.scales.write::<f32>()?;
        match call.recipe {
            Recipe::Rowwise => factors.iter_mut().enumerate().for_each(|(row, factor)| {
                *factor = inverse::<F>(largest_of(row_of(row)));
            }),
            Recipe::Tensorwise => factors[0] = inverse::<F>(largest_of(values)),
        }
    }
    let factors = layout.scales.read::<f32>()?;
    let factors: &[f32] = &factors;
    let width = layout.values.shape().columns();
    let per_task = rows::per_task(width);
    for_pieces(&mut layout.values.write::<F>()?, per_task * width, |index, codes| {
        for (row, codes) in codes.chunks_exact_mut(width).enumerate() {
            let row = index * per_task + row;
            let scale = 1.0 / factors[if factors.len() == 1 { 0 } else { row }];
            let (codes, padding) = codes.split_at_mut(columns);
            simd(
                #[inline(always)]
                || codes.iter_mut().zip(row_of(row)).for_each(|(code, x)| *code = F::from_f32(x * scale)),
            );
            padding.fill(F::from_f32(0.0));
        }
    });
    Ok(())
}

/// Sums every [`SUMMED_ROWS`] rows.
fn add(call: &Call<'_>, values: &[f32], sums: &Tensor) -> Result<()> {
    let columns = call.columns;
    for_pieces(&mut sums.write::<f32>()?, columns, |index, sums| {
        sums.fill(0.0);
        let first = index * SUMMED_ROWS;
        for row in values[first * columns..].chunks_exact(columns).take(SUMMED_ROWS) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    });
    Ok(())
}

/// Computes bias (+)= the sum over the rows of `sums`.
pub(super) fn finish_sums(sums: &Tensor, bias: &GradientTarget) -> Result<()> {
    let rows = sums.shape().rows();
    let width = sums.shape().columns();
    let sums = sums.read::<f32>()?;
    let sums: &[f32] = &sums;
    let mut total = vec![0.0; width];
    columns::sum_rows(rows, &mut total, false, |row, columns, total| {
        total.iter_mut().zip(&sums[row * width..][columns]).for_each(|(total, sum)| *total += sum);
    });
    dispatch!(
        bias.tensor.dtype(),
        T => {
            for (out, total) in bias.tensor.write::<T>()?.iter_mut().zip(total) {
                *out = T::from_f32(if bias.accumulate { out.to_f32() + total } else { total });
            }
            Ok(())
        },
        _ => Err(check::unsupported("fp8_linear.finish_sums", "bias", &bias.tensor)),
    )
}

/// Rows and columns of a tile of a matmul, and the number of terms that are added at once.
const TILE: [usize; 3] = [32, 64, 64];

/// Computes out (+)= a · bᵀ + bias.
pub(super) fn multiply(
    a: &Scaled,
    b: &Scaled,
    bias: Option<&Tensor>,
    out: &Tensor,
    accumulate: bool,
) -> Result<()> {
    multiply_columns((a, 0), (b, 0), a.values.shape().columns(), bias, out, accumulate)
}

/// Computes out (+)= a · bᵀ + bias over `terms` columns, which begin at `a_first` in a and at `b_first` in b.
pub(crate) fn multiply_columns(
    (a, a_first): (&Scaled, usize),
    (b, b_first): (&Scaled, usize),
    terms: usize,
    bias: Option<&Tensor>,
    out: &Tensor,
    accumulate: bool,
) -> Result<()> {
    dispatch!(
        out.dtype(),
        T => with_format!(a.values.dtype(), A => with_format!(b.values.dtype(), B => {
            let bias = bias.map(Tensor::read::<T>).transpose()?;
            let bias: &[T] = bias.as_deref().unwrap_or(&[]);
            let left = a.values.read::<A>()?;
            let right = b.values.read::<B>()?;
            let [left_scales, right_scales] = [a.scales.read::<f32>()?, b.scales.read::<f32>()?];
            let left = Matrix::new(&a.values, &left[a_first..], &left_scales);
            let right = Matrix::new(&b.values, &right[b_first..], &right_scales);
            product(&left, &right, terms, bias, &mut out.write::<T>()?, accumulate);
            Ok(())
        })),
        _ => Err(check::unsupported("fp8_linear", "out", out)),
    )
}

/// An FP8 matrix on the host, or some of its columns.
struct Matrix<'a, F: Fp8> {
    /// Elements, from the first row of the first column on.
    values: &'a [F],
    scales: &'a [f32],
    rows: usize,
    /// Elements from one row to the next.
    stride: usize,
}

impl<'a, F: Fp8> Matrix<'a, F> {
    fn new(matrix: &Tensor, values: &'a [F], scales: &'a [f32]) -> Self {
        let rows = matrix.shape().rows();
        let stride = matrix.shape().columns();
        Matrix { values, scales, rows, stride }
    }

    fn scale(&self, row: usize) -> f32 {
        self.scales[if self.scales.len() == 1 { 0 } else { row }]
    }
}

fn product<A: Fp8, B: Fp8, T: Float>(
    a: &Matrix<'_, A>,
    b: &Matrix<'_, B>,
    terms: usize,
    bias: &[T],
    out: &mut [T],
    accumulate: bool,
) {
    let [rows, columns, _] = TILE;
    for_pieces(out, rows * b.rows, |index, out| {
        for first in (0..b.rows).step_by(columns) {
            let tile = tile(a, b, terms, [index * rows, first]);
            for (row, (out, sums)) in out.chunks_mut(b.rows).zip(&tile).enumerate() {
                let of_row = a.scale(index * rows + row);
                for (i, (out, sum)) in out[first..].iter_mut().zip(sums).enumerate() {
                    let mut value = sum * (of_row * b.scale(first + i));
                    if let Some(bias) = bias.get(first + i) {
                        value += bias.to_f32();
                    }
                    *out = T::from_f32(if accumulate { out.to_f32() + value } else { value });
                }
            }
        }
    });
}

/// Returns the unscaled sums of the tile at a row and column.
fn tile<A: Fp8, B: Fp8>(
    a: &Matrix<'_, A>,
    b: &Matrix<'_, B>,
    all_terms: usize,
    [first_row, first_column]: [usize; 2],
) -> [[f32; TILE[1]]; TILE[0]] {
    let [rows, columns, terms] = TILE;
    let mut sums = [[0.0f32; TILE[1]]; TILE[0]];
    for first in (0..all_terms).step_by(terms) {
        let terms = terms.min(all_terms - first);
        let mut right = [[0.0f32; TILE[1]]; TILE[2]];
        for column in first_column..b.rows.min(first_column + columns) {
            let codes = &b.values[column * b.stride + first..][..terms];
            for (right, code) in right.iter_mut().zip(codes) {
                right[column - first_column] = code.to_f32();
            }
        }
        for (sums, row) in sums.iter_mut().zip(first_row..a.rows.min(first_row + rows)) {
            let codes = &a.values[row * a.stride + first..][..terms];
            simd(
                #[inline(always)]
                || {
                    for (code, right) in codes.iter().zip(&right) {
                        let left = code.to_f32();
                        sums.iter_mut().zip(right).for_each(|(sum, right)| *sum += left * right);
                    }
                },
            );
        }
    }
    sums
}
