//! Sums over ranks in the order of a fixed tree.

use device::{DType, Float, dispatch};

use crate::payload::Payload;

/// Sums all `parts`, one per rank in rank order, into the first part: adjacent parts, then adjacent sums, and
/// so on, each rounded to `dtype`. A part without a neighbour moves up to the next level.
pub(crate) fn tree(parts: &mut [Payload], dtype: DType) {
    let mut stride = 1;
    while stride < parts.len() {
        for left in (0..parts.len() - stride).step_by(2 * stride) {
            let (low, high) = parts.split_at_mut(left + stride);
            add(&mut low[left], &high[0], dtype);
        }
        stride *= 2;
    }
}

fn add(into: &mut Payload, from: &Payload, dtype: DType) {
    // Other dtypes were rejected earlier.
    dispatch!(dtype, T => add_as::<T>(into, from), _ => ());
}

#[inline(always)]
fn add_as<T: Float>(into: &mut Payload, from: &Payload) {
    let into = bytemuck::cast_slice_mut::<u8, T>(into.bytes_mut());
    let from = bytemuck::cast_slice::<u8, T>(from.bytes());
    let sum = |a: T, b: T| T::from_f32(a.to_f32() + b.to_f32());
    device::parallel::simd(|| into.iter_mut().zip(from).for_each(|(a, b)| *a = sum(*a, *b)));
}
