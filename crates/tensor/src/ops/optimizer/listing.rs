//! The table of parameters that `kernels/optimizer.cu` reads.

use device::{DType, Family};

use super::item::{Item, Storage};
use super::piece::MOST_STATES;
use super::quantised;
use super::rule::UpdateRule;
use crate::ops::kernels::family;
use crate::ops::table::{Table, halves};
use crate::ops::{gpu, norm};
use crate::{Result, Tensor};

/// Elements per thread block.
const CHUNK: u32 = 4096;

pub(in crate::ops) static FAMILY: Family = family!(
    "optimizer",
    headers: [
        "optimizer_parameters.cuh",
        "optimizer_quantised.cuh",
        "optimizer_rules.cuh",
        "philox.cuh",
        "power.cuh",
        "step_state.cuh",
        "table.cuh"
    ],
    constants: &[
        gpu::THREADS_CONSTANT,
        ("CHUNK", CHUNK),
        ("MOST_STATES", MOST_STATES as u32),
        ("STREAM_CHUNK", norm::CHUNK as u32),
        ("BLOCK", quantised::BLOCK as u32),
        ("CODES", quantised::CODES as u32),
    ],
);

/// Words per parameter: addresses of weight, gradient, states and half-precision copy, the number of
/// elements, flags, and the stream of random numbers.
const WORDS: usize = 2 * (3 + MOST_STATES + 1) + 2;
/// Flag of a parameter to which weight decay applies.
const DECAY: u32 = 1;
const ALIGNED: u32 = 2;
/// Flag of a parameter whose copy is in f16, not bf16.
const COPY_IN_F16: u32 = 4;
/// Bit position of the first chunk's number in the word of flags.
const FIRST_CHUNK: u32 = 8;

/// The parameters of a launch, written to a table on the device.
pub(super) struct Listing<'a> {
    pub(super) table: &'a Tensor,
    pub(super) count: u32,
    pub(super) blocks: u32,
    /// Bytes that the update moves at least.
    pub(super) bytes: u64,
}

/// Writes `items` into the table, unless it holds them already.
pub(super) fn list<'a>(rule: &UpdateRule, table: &'a Table, items: &[Item<'_>]) -> Result<Listing<'a>> {
    let operator = rule.operator();
    let writes_direction = rule.writes_direction();
    let mut words: Vec<u32> = items.iter().flat_map(words).collect();
    let mut blocks = 0;
    for item in items {
        words.push(gpu::word(operator, blocks)?);
        blocks += item.weight.elements().div_ceil(CHUNK as usize);
    }
    let blocks = gpu::word(operator, blocks)?;
    words.push(blocks);
    if items.iter().any(|item| item.storage() == Storage::Quantised) {
        words.extend(quantised::words());
    }
    let bytes = items.iter().map(|item| bytes(item, writes_direction)).sum();
    let count = gpu::word(operator, items.len())?;
    Ok(Listing { table: table.holding(words)?, count, blocks, bytes })
}

/// Returns the words of one parameter: [`WORDS`], followed for 8-bit states by the addresses of the maxima.
fn words(item: &Item<'_>) -> Vec<u32> {
    let mut tensors = [None; 3 + MOST_STATES];
    (tensors[0], tensors[1]) = (Some(item.weight), Some(item.gradient));
    tensors[2..].iter_mut().zip(item.states).for_each(|(slot, state)| *slot = Some(state));
    tensors[2 + MOST_STATES] = item.compute;
    let present: Vec<&Tensor> = tensors.into_iter().flatten().collect();
    let aligned = if gpu::aligned(&present) { ALIGNED } else { 0 };
    let addresses = tensors.map(|tensor| tensor.map_or(0, gpu::address));
    let numbers = addresses.into_iter().chain([item.weight.elements() as u64]);
    let mut words = vec![0; WORDS];
    for (words, number) in words.chunks_exact_mut(2).zip(numbers) {
        words.copy_from_slice(&halves(number));
    }
    let copy = item.compute.map(Tensor::dtype);
    let flag = |is: bool, flag: u32| if is { flag } else { 0 };
    words[WORDS - 2] = aligned | flag(item.decay, DECAY) | flag(copy == Some(DType::F16), COPY_IN_F16);
    match item.storage() {
        Storage::Single => {}
        Storage::Rounded => {
            words[WORDS - 2] |= item.stream.first_chunk << FIRST_CHUNK;
            words[WORDS - 1] = item.stream.id;
        }
        Storage::Quantised => {
            let addresses = item.maxima.iter().map(gpu::address).chain(std::iter::repeat(0));
            words.extend(addresses.take(MOST_STATES).flat_map(halves));
        }
    }
    words
}

/// Returns the bytes that an item's update moves at least.
fn bytes(item: &Item<'_>, writes_direction: bool) -> u64 {
    let states = item.states.iter().chain(item.maxima).map(|tensor| 2 * tensor.bytes() as u64);
    let weight = item.weight.bytes() as u64 * if writes_direction { 1 } else { 2 };
    weight
        + states.sum::<u64>()
        + item.gradient.bytes() as u64
        + item.compute.map_or(0, |tensor| tensor.bytes() as u64)
}
