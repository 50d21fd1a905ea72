//! Sums of ranks' contributions in the order of a fixed tree.

use device::DType;
use half::{bf16, f16};

use crate::piece::Piece;

/// The element types that have a sum.
pub(crate) const fn is_summable(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)
}

/// Adds all `parts`, one per rank in rank order, into the first: neighbours, then neighbours of those, and so
/// on; each sum is rounded to `dtype`. A part without a neighbour waits for the next level.
pub(crate) fn tree(parts: &mut [Piece], dtype: DType) {
    let mut stride = 1;
    while stride < parts.len() {
        for left in (0..parts.len() - stride).step_by(2 * stride) {
            let (low, high) = parts.split_at_mut(left + stride);
            add(&mut low[left], &high[0], dtype);
        }
        stride *= 2;
    }
}

fn add(into: &mut Piece, from: &Piece, dtype: DType) {
    match dtype {
        DType::F32 => add_as::<f32>(into, from, |a, b| a + b),
        DType::Bf16 => add_as::<bf16>(into, from, |a, b| bf16::from_f32(a.to_f32() + b.to_f32())),
        DType::F16 => add_as::<f16>(into, from, |a, b| f16::from_f32(a.to_f32() + b.to_f32())),
        // Refused before anything is sent (`is_summable`).
        DType::U32 => {}
    }
}

#[inline(always)]
fn add_as<T: bytemuck::Pod>(into: &mut Piece, from: &Piece, sum: impl Fn(T, T) -> T) {
    let into = bytemuck::cast_slice_mut::<u8, T>(into.bytes_mut());
    let from = bytemuck::cast_slice::<u8, T>(from.bytes());
    device::parallel::simd(|| into.iter_mut().zip(from).for_each(|(a, b)| *a = sum(*a, *b)));
}
