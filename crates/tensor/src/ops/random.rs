//! Random values for initial weights: Philox keyed by (seed, name) and element, so that a value depends on
//! nothing else: not on the device, nor on which rank makes it.

use device::parallel::for_pieces;
use philox::{key_of_name, normals, philox4x32};

use super::{check, fill};
use crate::{Result, Tensor};

/// Elements of one task, a multiple of the four values of a Philox block.
const TASK: usize = 1 << 12;

/// Fills an f32 or bf16 tensor with normal values, rounded to its type: element i is `mean` + `deviation` · value i mod 4 of block i div 4 of
/// the stream `name` under `seed`. Errors: another type.
pub fn normal(target: &Tensor, seed: u64, name: &str, mean: f32, deviation: f32) -> Result<()> {
    check::computed("random.normal", &[("target", target)])?;
    from_blocks(target, seed, name, |words| normals(words).map(|z| mean + deviation * z))
}

/// Fills an f32 or bf16 tensor with uniform values in `low..=high` (the upper end by rounding only), from the same blocks as [`normal`].
/// Errors: another type.
pub fn uniform(target: &Tensor, seed: u64, name: &str, low: f32, high: f32) -> Result<()> {
    check::computed("random.uniform", &[("target", target)])?;
    from_blocks(target, seed, name, |words| words.map(|word| low + (high - low) * philox::uniform(word)))
}

fn from_blocks(
    target: &Tensor,
    seed: u64,
    name: &str,
    make: impl Fn([u32; 4]) -> [f32; 4] + Sync,
) -> Result<()> {
    const { assert!(TASK.is_multiple_of(4) && fill::PIECE.is_multiple_of(TASK)) };
    let key = key_of_name(seed, name);
    fill::in_pieces(target, |first, values| {
        for_pieces(values, TASK, |index, values| {
            let first_block = ((first + index * TASK) / 4) as u64;
            for (block, values) in (first_block..).zip(values.chunks_mut(4)) {
                let drawn = make(philox4x32(key, [block as u32, (block >> 32) as u32, 0, 0]));
                values.copy_from_slice(&drawn[..values.len()]);
            }
        });
    })
}
