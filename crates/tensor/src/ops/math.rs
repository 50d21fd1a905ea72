//! Elementary functions and sums that the compiler turns into vector instructions.
//!
//! Call these inside [`device::parallel::simd`], where all are inlined. Sums run in [`LANES`] partial sums
//! that are folded as a binary tree, so their order depends on the length alone.

use std::ops::{Add, AddAssign};

/// Number of partial sums of a reduction.
pub(crate) const LANES: usize = 32;

/// Argument below which e^x is not a normal f32 and [`exp`] gives 0.
const LOWEST: f32 = -87.336_54;
/// Largest argument for which [`exp`] is accurate; larger arguments give e^88.
pub(crate) const HIGHEST: f32 = 88.0;

/// Returns e^x with a relative error below 1e-7 for x in −87.3..88; 0 below, e^88 above, NaN for NaN.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2 (Cody and Waite's two-part ln 2), e^r by its Taylor series of degree 7
/// (truncated below 6e-9), and 2^n assembled from its bits.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding this number to an f32 rounds it to an integer, which then is in the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > HIGHEST { HIGHEST } else { x };
    let clamped = if clamped < LOWEST { LOWEST } else { clamped };
    let rounded = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, clamped));
    let mut series = 1.0 / 5040.0_f32;
    series = series.mul_add(r, 1.0 / 720.0);
    series = series.mul_add(r, 1.0 / 120.0);
    series = series.mul_add(r, 1.0 / 24.0);
    series = series.mul_add(r, 1.0 / 6.0);
    series = series.mul_add(r, 0.5);
    series = series.mul_add(r, 1.0);
    series = series.mul_add(r, 1.0);
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < LOWEST { 0.0 } else { series * power }
}

/// Returns Σ term(x) over `x`.
#[inline(always)]
pub(crate) fn sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    sum_terms(x, x, |x, _| term(x))
}

/// Returns Σ term(x, y) over two slices of one length.
#[inline(always)]
pub(crate) fn sum2(x: &[f32], y: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    sum_terms(x, y, term)
}

/// Returns Σ term(x, y) in f64 over two slices of one length.
#[inline(always)]
pub(crate) fn sum2_f64<T: Copy + Into<f64>>(x: &[T], y: &[T], term: impl Fn(f64, f64) -> f64) -> f64 {
    sum_terms(x, y, |x, y| term(x.into(), y.into()))
}

#[inline(always)]
fn sum_terms<T: Copy, A: Copy + Default + AddAssign + Add<Output = A>>(
    x: &[T],
    y: &[T],
    term: impl Fn(T, T) -> A,
) -> A {
    let mut lanes = [A::default(); LANES];
    let ((whole_x, rest_x), (whole_y, rest_y)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in whole_x.iter().zip(whole_y) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += term(*x, *y);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(rest_x).zip(rest_y) {
        *lane += term(*x, *y);
    }
    fold(lanes, A::add)
}

/// Replaces every x by map(x) and returns the sum of the new values, in the order of [`sum`].
#[inline(always)]
pub(crate) fn map_and_sum(x: &mut [f32], map: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = x.as_chunks_mut::<LANES>();
    for chunk in whole {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *value = map(*value);
            *lane += *value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *value = map(*value);
        *lane += *value;
    }
    fold(lanes, |a, b| a + b)
}

/// Returns the largest of `x`, or −∞ if empty. A NaN may be ignored.
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = if *value > *lane { *value } else { *lane };
    }
    fold(lanes, |a, b| if b > a { b } else { a })
}

/// Joins the lanes as a binary tree, one whole level at a time so that each level is a vector operation.
#[inline(always)]
fn fold<T: Copy>(lanes: [T; LANES], join: impl Fn(T, T) -> T) -> T {
    let sixteen: [T; 16] = std::array::from_fn(|i| join(lanes[i], lanes[i + 16]));
    let eight: [T; 8] = std::array::from_fn(|i| join(sixteen[i], sixteen[i + 8]));
    let four: [T; 4] = std::array::from_fn(|i| join(eight[i], eight[i + 4]));
    join(join(four[0], four[2]), join(four[1], four[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_has_a_relative_error_below_1e7() {
        let mut worst = 0.0f64;
        for step in -87_300..=87_999 {
            let x = step as f32 * 1e-3;
            let truth = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / truth - 1.0).abs());
        }
        assert!(worst < 1e-7, "{worst:e}");
    }

    #[test]
    fn exp_at_the_ends_of_its_range() {
        let table = [(0.0, 1.0), (-0.0, 1.0), (-88.0, 0.0), (f32::NEG_INFINITY, 0.0)];
        for (x, expected) in table {
            assert_eq!(exp(x), expected, "{x}");
        }
        assert_eq!(exp(f32::INFINITY), exp(HIGHEST));
        assert!(exp(HIGHEST).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_and_maxima_of_every_length() {
        for length in 0..100usize {
            let x: Vec<f32> = (0..length).map(|i| (i * 37 % 64) as f32 - 20.0).collect();
            let expected: f32 = x.iter().sum();
            assert_eq!(sum(&x, |v| v), expected, "{length}");
            assert_eq!(sum2(&x, &x, |a, b| a * b), x.iter().map(|v| v * v).sum::<f32>(), "{length}");
            assert_eq!(sum2_f64(&x, &x, |a, b| a - b), 0.0, "{length}");
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max), "{length}");
            let mut mapped = x.clone();
            assert_eq!(map_and_sum(&mut mapped, |v| v + 1.0), expected + length as f32, "{length}");
            assert!(mapped.iter().zip(&x).all(|(a, b)| *a == b + 1.0));
        }
    }
}
