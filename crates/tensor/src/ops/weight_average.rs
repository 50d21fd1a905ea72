//! Exponential averages of weights over updates.
//!
//! An update moves an average towards its weight: average += (weight − average) · fraction. The fraction
//! is in the [`StepState`], so that a captured step may change it: 0 keeps the average, and 1 copies the
//! weight.

use device::parallel::{CHUNK, for_pieces, for_tasks, simd};
use device::{Backend, Family, Function};

use super::kernels::family;
use super::table::{Table, halves};
use super::{StepState, check, gpu, rows};
use crate::{Result, Tensor};

/// Elements per thread block.
const ELEMENTS_PER_BLOCK: u32 = 4096;

pub(super) static FAMILY: Family = family!(
    "weight_average",
    headers: ["step_state.cuh", "table.cuh"],
    constants: &[gpu::THREADS_CONSTANT, ("CHUNK", ELEMENTS_PER_BLOCK)],
);

/// A weight and its average, both f32 with the same number of elements.
#[derive(Clone, Copy, Debug)]
pub struct Averaged<'a> {
    /// The weight.
    pub weight: &'a Tensor,
    /// The average over updates.
    pub average: &'a Tensor,
}

/// Moves all averages towards their weights by the fraction in `state`, in one launch. If `state` is set to
/// skip, averages stay unchanged. `table` must be made for that many items.
///
/// # Errors
/// Shapes, types or counts that do not agree.
pub fn update(table: &Table, items: &[Averaged<'_>], state: &StepState) -> Result<()> {
    const OPERATOR: &str = "weight_average.update";
    table.check(OPERATOR, items.len())?;
    items.iter().try_for_each(|item| check_pair(OPERATOR, item.weight, item.average))?;
    let Some(first) = items.first() else { return Ok(()) };
    match first.weight.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => update_on_host(items, state),
        Backend::Cuda => {
            let (words, blocks) = words(OPERATOR, items)?;
            let launch = first.weight.device().kernel(Function::new(&FAMILY, "update"));
            let launch = launch.read(table.holding(words)?).read(state.region());
            let launch = launch.u32(gpu::word(OPERATOR, items.len())?);
            let bytes = items.iter().map(|item| gpu::bytes(&[item.weight, item.average, item.average])).sum();
            let flops = items.iter().map(|item| 3 * item.weight.elements() as u64).sum();
            Ok(launch.cost(bytes, flops).launch([blocks, 1, 1], gpu::THREADS)?)
        }
    }
}

/// Exchanges the elements of two f32 tensors.
///
/// # Errors
/// Shapes or types that do not agree.
pub fn exchange(one: &Tensor, other: &Tensor) -> Result<()> {
    const OPERATOR: &str = "weight_average.exchange";
    check_pair(OPERATOR, one, other)?;
    match one.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => exchange_on_host(one, other),
        Backend::Cuda => {
            let launch = one.device().kernel(Function::new(&FAMILY, "exchange"));
            let launch = launch.write(one).write(other).u64(one.elements() as u64);
            let blocks = gpu::word(OPERATOR, one.elements().div_ceil(ELEMENTS_PER_BLOCK as usize))?;
            let launch = launch.cost(gpu::bytes(&[one, one, other, other]), 0);
            Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
        }
    }
}

fn check_pair(operator: &'static str, weight: &Tensor, average: &Tensor) -> Result<()> {
    check::f32s(operator, &[("weight", weight), ("average", average)])?;
    check::elements(operator, "average", average, weight.elements())
}

/// Returns the table that `kernels/weight_average.cu` reads, and the number of blocks of a launch.
fn words(operator: &'static str, items: &[Averaged<'_>]) -> Result<(Vec<u32>, u32)> {
    let numbers = |item: &Averaged<'_>| {
        [gpu::address(item.weight), gpu::address(item.average), item.weight.elements() as u64]
    };
    let mut words: Vec<u32> = items.iter().flat_map(numbers).flat_map(halves).collect();
    let mut blocks = 0;
    for item in items {
        words.push(gpu::word(operator, blocks)?);
        blocks += item.weight.elements().div_ceil(ELEMENTS_PER_BLOCK as usize);
    }
    let blocks = gpu::word(operator, blocks)?;
    words.push(blocks);
    Ok((words, blocks))
}

fn update_on_host(items: &[Averaged<'_>], state: &StepState) -> Result<()> {
    let words = state.read()?;
    let fraction = words.average_fraction();
    if fraction == 0.0 || words.skip() {
        return Ok(());
    }
    for item in items {
        let weight = item.weight.read::<f32>()?;
        let weight: &[f32] = &weight;
        for_pieces(&mut item.average.write::<f32>()?, CHUNK, |index, average| {
            simd(
                #[inline(always)]
                || move_towards(average, rows::piece(weight, index, CHUNK), fraction),
            );
        });
    }
    Ok(())
}

#[inline(always)]
fn move_towards(average: &mut [f32], weight: &[f32], fraction: f32) {
    if fraction == 1.0 {
        average.copy_from_slice(weight);
        return;
    }
    for (average, weight) in average.iter_mut().zip(weight) {
        *average = fraction.mul_add(weight - *average, *average);
    }
}

fn exchange_on_host(one: &Tensor, other: &Tensor) -> Result<()> {
    let mut one = one.write::<f32>()?;
    let mut other = other.write::<f32>()?;
    let pairs = one.chunks_mut(CHUNK).zip(other.chunks_mut(CHUNK)).collect();
    for_tasks(pairs, |(one, other): (&mut [f32], &mut [f32])| one.swap_with_slice(other));
    Ok(())
}
