//! Random values for initial weights. Philox is keyed by (seed, name) and counts elements, so that a value is
//! the same on every device and rank. GPUs draw the same bits as the host.

use std::ops::Range;
use std::slice;

use device::parallel::for_pieces;
use device::{Backend, Family, Function};
use philox::{key_of_name, normals, philox4x32};

use super::kernels::family;
use super::{check, fill, gpu};
use crate::{Result, Tensor};

pub(super) static FAMILY: Family =
    family!("random", headers: ["philox.cuh"], constants: &[gpu::THREADS_CONSTANT]);

/// Elements per task.
const TASK: usize = 1 << 12;

/// Fills an f32 or bf16 tensor with normal values, rounded to its type. Element i is `mean` + `deviation` ·
/// value i mod 4 of block i div 4 of the stream `name` under `seed`.
pub fn normal(target: &Tensor, seed: u64, name: &str, mean: f32, deviation: f32) -> Result<()> {
    normal_part(target, slice::from_ref(&(0..target.elements())), seed, name, mean, deviation)
}

/// Fills a part of a tensor as [`normal`] fills the whole. `ranges` are the part's elements in the whole
/// tensor, in order.
pub fn normal_part(
    target: &Tensor,
    elements: &[Range<usize>],
    seed: u64,
    name: &str,
    mean: f32,
    deviation: f32,
) -> Result<()> {
    check::computed("random.normal", &[("target", target)])?;
    let values = Values { function: Function::new(&FAMILY, "normal"), numbers: [mean, deviation] };
    let make = |words: [u32; 4]| normals(words).map(|z| mean + deviation * z);
    from_blocks(target, elements, key_of_name(seed, name), values, make)
}

/// Fills an f32 or bf16 tensor with uniform values in `low..=high` (`high` by rounding only), from the same
/// blocks as [`normal`].
pub fn uniform(target: &Tensor, seed: u64, name: &str, low: f32, high: f32) -> Result<()> {
    uniform_part(target, slice::from_ref(&(0..target.elements())), seed, name, low, high)
}

/// Fills a part of a tensor as [`uniform`] fills the whole. `ranges` are the part's elements in the whole
/// tensor, in order.
pub fn uniform_part(
    target: &Tensor,
    elements: &[Range<usize>],
    seed: u64,
    name: &str,
    low: f32,
    high: f32,
) -> Result<()> {
    check::computed("random.uniform", &[("target", target)])?;
    let width = high - low;
    let values = Values { function: Function::new(&FAMILY, "uniform"), numbers: [low, width] };
    let make = |words: [u32; 4]| words.map(|word| low + width * philox::uniform(word));
    from_blocks(target, elements, key_of_name(seed, name), values, make)
}

/// The kernel that draws values on a GPU, and (offset, factor): a value is offset + factor · draw.
struct Values {
    function: Function,
    numbers: [f32; 2],
}

fn from_blocks(
    target: &Tensor,
    elements: &[Range<usize>],
    key: [u32; 2],
    values: Values,
    make: impl Fn([u32; 4]) -> [f32; 4] + Sync,
) -> Result<()> {
    check::count("random", elements.iter().map(Range::len).sum(), target.elements())?;
    match target.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => on_host(target, elements, key, make),
        Backend::Cuda => on_gpu(target, elements, key, &values),
    }
}

fn on_host(
    target: &Tensor,
    elements: &[Range<usize>],
    key: [u32; 2],
    make: impl Fn([u32; 4]) -> [f32; 4] + Sync,
) -> Result<()> {
    const { assert!(fill::PIECE.is_multiple_of(TASK)) };
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

fn on_gpu(target: &Tensor, elements: &[Range<usize>], key: [u32; 2], values: &Values) -> Result<()> {
    let element = target.dtype().bytes();
    let mut drawn = 0;
    let mut rest = elements;
    while let [first, ..] = rest {
        let (ranges, stride) = regular(rest);
        let count = ranges * first.len();
        let length = first.len();
        rest = &rest[ranges..];
        if count == 0 {
            continue;
        }
        let blocks = gpu::word("random", count.div_ceil(gpu::THREADS as usize))?;
        let kernel = target.device().kernel(values.function.with_dtype(target.dtype()));
        kernel
            .write(target.region().part(drawn * element, count * element))
            .u64(count as u64)
            .u64(first.start as u64)
            .u64(length as u64)
            .u64(stride as u64)
            .u32(key[0])
            .u32(key[1])
            .f32(values.numbers[0])
            .f32(values.numbers[1])
            .cost((count * element) as u64, 0)
            .launch([blocks, 1, 1], gpu::THREADS)?;
        drawn += count;
    }
    Ok(())
}

/// Returns how many of the first ranges have equal lengths and distances, and the distance.
fn regular(ranges: &[Range<usize>]) -> (usize, usize) {
    let [first, second, ..] = ranges else { return (ranges.len(), 0) };
    let Some(stride) = second.start.checked_sub(first.start) else { return (1, 0) };
    let follows = |pair: &&[Range<usize>]| {
        pair[1].len() == first.len() && pair[1].start.checked_sub(pair[0].start) == Some(stride)
    };
    (1 + ranges.windows(2).take_while(follows).count(), stride)
}

/// Draws the elements of a stream from `element` on into `values`.
fn draw(mut values: &mut [f32], mut element: usize, key: [u32; 2], make: &impl Fn([u32; 4]) -> [f32; 4]) {
    while !values.is_empty() {
        let block = (element / 4) as u64;
        let lane = element % 4;
        let (now, later) = values.split_at_mut(values.len().min(4 - lane));
        let drawn = make(philox4x32(key, [block as u32, (block >> 32) as u32, 0, 0]));
        now.copy_from_slice(&drawn[lane..lane + now.len()]);
        element += now.len();
        values = later;
    }
}
