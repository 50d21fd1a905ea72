//! Hashes computed by the host.

use device::parallel;

use crate::{Result, Tensor};

/// Maximum bytes of one copy to the host; a multiple of every element's size.
const PIECE: usize = 1 << 22;

/// Elements that one task hashes.
const CHUNK: usize = 1 << 16;

/// Returns the hash of a tensor as [`super::of_part`] does.
pub(super) fn of_part(tensor: &Tensor, start: usize) -> Result<u64> {
    let size = tensor.dtype().bytes();
    let elements = tensor.elements();
    let mut sum = 0_u64;
    let mut bytes = Vec::new();
    for first in (0..elements).step_by(PIECE / size) {
        let piece = tensor.view(first, [(PIECE / size).min(elements - first)])?;
        bytes.resize(piece.bytes(), 0);
        piece.read_bytes(&mut bytes)?;
        let chunks: Vec<_> = bytes.chunks(CHUNK * size).collect();
        let sums = parallel::map(chunks.len(), |chunk| {
            sum_of(chunks[chunk], size, (start + first + chunk * CHUNK) as u64)
        });
        sum = sums.into_iter().fold(sum, u64::wrapping_add);
    }
    Ok(sum)
}

/// Returns the hash of elements of `size` bytes; the first has index `first`.
pub fn sum_of(bytes: &[u8], size: usize, first: u64) -> u64 {
    let value = |element: &[u8]| element.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let terms = bytes.chunks_exact(size).zip(first..).map(|(element, index)| mixed(index, value(element)));
    terms.fold(0, u64::wrapping_add)
}

/// Mixes an index and a value by SplitMix64. At one index, different values give different results.
pub fn mixed(index: u64, value: u64) -> u64 {
    let x = value.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
