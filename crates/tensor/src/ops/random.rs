//! Random values for initial weights: Philox keyed by (seed, name) and element index, so that a value is the
//! same on every device and rank.

use std::ops::Range;
use std::slice;

use device::Backend;
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
    normal_part(target, slice::from_ref(&(0..target.elements())), seed, name, mean, deviation)
}

/// [`normal`] of a part that has these elements of the stream, one range after the other.
///
/// # Errors
/// Another type or number of elements.
pub fn normal_part(
    target: &Tensor,
    elements: &[Range<usize>],
    seed: u64,
    name: &str,
    mean: f32,
    deviation: f32,
) -> Result<()> {
    check::computed("random.normal", &[("target", target)])?;
    from_blocks(target, elements, seed, name, |words| normals(words).map(|z| mean + deviation * z))
}

/// Fills an f32 or bf16 tensor with uniform values in `low..=high` (`high` by rounding only), from the same
/// blocks as [`normal`].
///
/// # Errors
/// Another type.
pub fn uniform(target: &Tensor, seed: u64, name: &str, low: f32, high: f32) -> Result<()> {
    uniform_part(target, slice::from_ref(&(0..target.elements())), seed, name, low, high)
}

/// [`uniform`] of a part that has these elements of the stream, one range after the other.
///
/// # Errors
/// Another type or number of elements.
pub fn uniform_part(
    target: &Tensor,
    elements: &[Range<usize>],
    seed: u64,
    name: &str,
    low: f32,
    high: f32,
) -> Result<()> {
    check::computed("random.uniform", &[("target", target)])?;
    let make = |words: [u32; 4]| words.map(|word| low + (high - low) * philox::uniform(word));
    from_blocks(target, elements, seed, name, make)
}

fn from_blocks(
    target: &Tensor,
    elements: &[Range<usize>],
    seed: u64,
    name: &str,
    make: impl Fn([u32; 4]) -> [f32; 4] + Sync,
) -> Result<()> {
    const { assert!(fill::PIECE.is_multiple_of(TASK)) };
    check::count("random", elements.iter().map(Range::len).sum(), target.elements())?;
    if target.device().backend() == Backend::Meta {
        return Ok(());
    }
    let key = key_of_name(seed, name);
    let before = |position: &mut usize, range: &Range<usize>| {
        let first = *position;
        *position += range.len();
        Some(first)
    };
    // The position in the target of each range's first element.
    let positions: Vec<usize> = elements.iter().scan(0, before).collect();
    fill::in_pieces(target, |start, values| {
        for_pieces(values, TASK, |index, values| {
            let first = start + index * TASK;
            let mut number = positions.partition_point(|position| *position <= first) - 1;
            let mut skipped = first - positions[number];
            let mut rest = values;
            while !rest.is_empty() {
                let range = &elements[number];
                let (now, later) = rest.split_at_mut(rest.len().min(range.len() - skipped));
                draw(now, range.start + skipped, key, &make);
                (rest, skipped, number) = (later, 0, number + 1);
            }
        });
    })
}

/// Draws the elements of a stream from `element` on.
fn draw(mut values: &mut [f32], mut element: usize, key: [u32; 2], make: &impl Fn([u32; 4]) -> [f32; 4]) {
    while !values.is_empty() {
        let (block, lane) = ((element / 4) as u64, element % 4);
        let (now, later) = values.split_at_mut(values.len().min(4 - lane));
        let drawn = make(philox4x32(key, [block as u32, (block >> 32) as u32, 0, 0]));
        now.copy_from_slice(&drawn[lane..lane + now.len()]);
        element += now.len();
        values = later;
    }
}
