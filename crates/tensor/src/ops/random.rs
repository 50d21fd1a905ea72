//! Random values for initial weights: Philox keyed by (seed, name) and element index, so that a value is the
//! same on every device and rank.

use device::parallel::for_pieces;
use philox::{key_of_name, normals, philox4x32};

use super::{check, fill};
use crate::{Result, Tensor};

/// Elements of one task.
const TASK: usize = 1 << 12;

/// Fills an f32 or bf16 tensor with normal values, rounded to its type: element i is `mean` + `deviation` ·
/// value i mod 4 of block i div 4 of the stream `name` under `seed`.
///
/// # Errors
/// Another type.
pub fn normal(target: &Tensor, seed: u64, name: &str, mean: f32, deviation: f32) -> Result<()> {
    normal_part(target, 0, seed, name, mean, deviation)
}

/// [`normal`] of a shard whose first element is element `first` of the stream.
pub fn normal_part(
    target: &Tensor,
    first: usize,
    seed: u64,
    name: &str,
    mean: f32,
    deviation: f32,
) -> Result<()> {
    check::computed("random.normal", &[("target", target)])?;
    from_blocks(target, first, seed, name, |words| normals(words).map(|z| mean + deviation * z))
}

/// Fills an f32 or bf16 tensor with uniform values in `low..=high` (`high` by rounding only), from the same
/// blocks as [`normal`].
///
/// # Errors
/// Another type.
pub fn uniform(target: &Tensor, seed: u64, name: &str, low: f32, high: f32) -> Result<()> {
    uniform_part(target, 0, seed, name, low, high)
}

/// [`uniform`] of a shard whose first element is element `first` of the stream.
pub fn uniform_part(target: &Tensor, first: usize, seed: u64, name: &str, low: f32, high: f32) -> Result<()> {
    check::computed("random.uniform", &[("target", target)])?;
    let make = |words: [u32; 4]| words.map(|word| low + (high - low) * philox::uniform(word));
    from_blocks(target, first, seed, name, make)
}

fn from_blocks(
    target: &Tensor,
    first: usize,
    seed: u64,
    name: &str,
    make: impl Fn([u32; 4]) -> [f32; 4] + Sync,
) -> Result<()> {
    const { assert!(fill::PIECE.is_multiple_of(TASK)) };
    let key = key_of_name(seed, name);
    fill::in_pieces(target, |start, values| {
        for_pieces(values, TASK, |index, values| {
            let mut element = first + start + index * TASK;
            let mut rest = values;
            while !rest.is_empty() {
                let (block, lane) = ((element / 4) as u64, element % 4);
                let (now, later) = rest.split_at_mut(rest.len().min(4 - lane));
                let drawn = make(philox4x32(key, [block as u32, (block >> 32) as u32, 0, 0]));
                now.copy_from_slice(&drawn[lane..lane + now.len()]);
                element += now.len();
                rest = later;
            }
        });
    })
}
