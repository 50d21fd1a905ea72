//! Addresses of many tensors on the device, for operators that process all parameters in one launch.

use std::cell::RefCell;

use device::Device;

use super::check;
use crate::{Result, Tensor};

/// Returns the bytes of an optimizer's table: 56 per tensor and the index of its first block; 0 for no
/// tensor.
fn parameter_bytes(tensors: usize) -> usize {
    if tensors == 0 { 0 } else { 56 * tensors + 4 * (tensors + 1) }
}

/// Returns the bytes of an optimizer's table for 8-bit states: two more addresses per tensor, and both codes.
fn quantised_bytes(tensors: usize) -> usize {
    if tensors == 0 { 0 } else { parameter_bytes(tensors) + 16 * tensors + 2 * 4 * 256 }
}

/// Returns the bytes of a table of weights and averages: 24 per pair, and the index of its first block; 0 for
/// no pair.
fn average_bytes(pairs: usize) -> usize {
    if pairs == 0 { 0 } else { 24 * pairs + 4 * (pairs + 1) }
}

/// Returns the bytes of a norm's table: 16 per tensor, the index of its first chunk, and a counter.
fn gradient_bytes(tensors: usize) -> usize {
    16 * tensors + 4 * (tensors + 1) + 4
}

/// Returns the bytes of a norm's table of shards: 16 per shard, and the indices of its first chunk and first
/// sum.
fn part_bytes(parts: usize) -> usize {
    16 * parts + 4 * (parts + 1) + 4 * parts
}

/// Device table of one operator's tensors. It is rewritten only when an address has changed. On the CPU it
/// has no bytes.
#[derive(Debug)]
pub struct Table {
    words: Tensor,
    tensors: usize,
    written: RefCell<Vec<u32>>,
}

impl Table {
    /// Allocates a table for [`super::optimizer::update`] of `tensors` items.
    pub fn of_parameters(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "optimizer.table", tensors, parameter_bytes(tensors))
    }

    /// Allocates a table for [`super::optimizer::update`] of `tensors` items with 8-bit states.
    pub fn of_quantised(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "optimizer.table", tensors, quantised_bytes(tensors))
    }

    /// Allocates a table for [`super::weight_average::update`] of `pairs` weights and averages.
    pub fn of_averages(device: &Device, pairs: usize) -> Result<Self> {
        Self::new(device, "weight_average.table", pairs, average_bytes(pairs))
    }

    /// Allocates a table for [`super::norm::measure`] of `tensors` gradients.
    pub fn of_gradients(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "norm.table", tensors, gradient_bytes(tensors))
    }

    /// Allocates a table for [`super::norm::part_sums`] of `parts` shards.
    pub fn of_parts(device: &Device, parts: usize) -> Result<Self> {
        Self::new(device, "norm.table", parts, part_bytes(parts))
    }

    fn new(device: &Device, operator: &'static str, tensors: usize, bytes: usize) -> Result<Self> {
        let words = Tensor::workspace(device, operator, bytes)?;
        Ok(Table { words, tensors, written: RefCell::default() })
    }

    /// Refuses a number of tensors for which the table was not made.
    pub(super) fn check(&self, operator: &'static str, tensors: usize) -> Result<()> {
        check::count(operator, tensors, self.tensors)
    }

    /// Writes `words` into the table if they changed, and returns it.
    pub(super) fn holding(&self, words: Vec<u32>) -> Result<&Tensor> {
        if *self.written.borrow() != words {
            self.words.set(&words)?;
            *self.written.borrow_mut() = words;
        }
        Ok(&self.words)
    }
}

/// Returns the low and the high word of a 64-bit number, as a kernel reads them from memory.
pub(super) fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}
