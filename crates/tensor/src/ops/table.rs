//! Addresses of many tensors on the device, for operators that process all parameters in one launch.

use std::cell::RefCell;

use device::Device;

use super::check;
use crate::{Result, Tensor};

/// Bytes of an optimizer's table: 56 per tensor and the index of its first block; 0 for no tensor.
fn parameter_bytes(tensors: usize) -> usize {
    if tensors == 0 { 0 } else { 56 * tensors + 4 * (tensors + 1) }
}

/// Bytes of an optimizer's table if states are in 8 bits: two more addresses per tensor, and both codes.
fn quantised_bytes(tensors: usize) -> usize {
    if tensors == 0 { 0 } else { parameter_bytes(tensors) + 16 * tensors + 2 * 4 * 256 }
}

/// Bytes of a norm's table: 16 per tensor, the index of its first chunk, and a counter.
fn gradient_bytes(tensors: usize) -> usize {
    16 * tensors + 4 * (tensors + 1) + 4
}

/// Bytes of the table of shards whose sums a norm adds: 16 per shard, the index of its first chunk, and the
/// index of its first sum.
fn part_bytes(parts: usize) -> usize {
    16 * parts + 4 * (parts + 1) + 4 * parts
}

/// A table of one operator's tensors, whose addresses rarely change between calls. It is written again when
/// one has. On the CPU it has no bytes.
#[derive(Debug)]
pub struct Table {
    words: Tensor,
    tensors: usize,
    written: RefCell<Vec<u32>>,
}

impl Table {
    /// A table for [`super::optimizer::update`] of `tensors` items.
    pub fn of_parameters(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "optimizer.table", tensors, parameter_bytes(tensors))
    }

    /// A table for [`super::optimizer::update`] of `tensors` items with states in 8 bits.
    pub fn of_quantised(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "optimizer.table", tensors, quantised_bytes(tensors))
    }

    /// A table for [`super::norm::measure`] of `tensors` gradients.
    pub fn of_gradients(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "norm.table", tensors, gradient_bytes(tensors))
    }

    /// A table for [`super::norm::part_sums`] of `parts` shards.
    pub fn of_parts(device: &Device, parts: usize) -> Result<Self> {
        Self::new(device, "norm.table", parts, part_bytes(parts))
    }

    fn new(device: &Device, operator: &'static str, tensors: usize, bytes: usize) -> Result<Self> {
        let words = Tensor::workspace(device, operator, bytes)?;
        Ok(Table { words, tensors, written: RefCell::default() })
    }

    /// Refuses a number of tensors other than the table was made for.
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

/// The two words of a 64-bit number in memory, as a kernel reads it.
pub(super) fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}
