//! Addresses of many tensors on the device, for operators that work on all parameters in one launch.

use std::cell::RefCell;

use device::Device;

use super::check;
use crate::{Result, Tensor};

/// Bytes of an optimizer's table: 56 for each tensor, and where its blocks begin; 0 for no tensor.
fn parameter_bytes(tensors: usize) -> usize {
    if tensors == 0 { 0 } else { 56 * tensors + 4 * (tensors + 1) }
}

/// Bytes of a norm's table: 16 for each tensor, where its chunks begin, and a counter.
fn gradient_bytes(tensors: usize) -> usize {
    16 * tensors + 4 * (tensors + 1) + 4
}

/// Bytes of the table of the parts that a norm's sums are of: 16 for each, where its chunks begin, and where
/// its sums go.
fn part_bytes(parts: usize) -> usize {
    16 * parts + 4 * (parts + 1) + 4 * parts
}

/// A table of one operator's tensors, which stay where they are from call to call. It is written again when
/// an address has changed since the last call. On the CPU it has no bytes.
#[derive(Debug)]
pub struct Table {
    words: Tensor,
    tensors: usize,
    written: RefCell<Vec<u32>>,
}

impl Table {
    /// A table for [`super::optimizer::update`] of `tensors` items. Errors: out of memory.
    pub fn of_parameters(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "optimizer.table", tensors, parameter_bytes(tensors))
    }

    /// A table for [`super::norm::measure`] of `tensors` gradients. Errors: out of memory.
    pub fn of_gradients(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "norm.table", tensors, gradient_bytes(tensors))
    }

    /// A table for [`super::norm::part_sums`] of `parts` parts. Errors: out of memory.
    pub fn of_parts(device: &Device, parts: usize) -> Result<Self> {
        Self::new(device, "norm.table", parts, part_bytes(parts))
    }

    fn new(device: &Device, operator: &'static str, tensors: usize, bytes: usize) -> Result<Self> {
        let words = Tensor::workspace(device, operator, bytes)?;
        Ok(Table { words, tensors, written: RefCell::default() })
    }

    /// Refuses another number of tensors than the table was made for.
    pub(super) fn check(&self, operator: &'static str, tensors: usize) -> Result<()> {
        check::count(operator, tensors, self.tensors)
    }

    /// Returns the table on the device, after it holds `words`.
    pub(super) fn holding(&self, words: Vec<u32>) -> Result<&Tensor> {
        if *self.written.borrow() != words {
            self.words.set(&words)?;
            *self.written.borrow_mut() = words;
        }
        Ok(&self.words)
    }
}

/// The words of a 64-bit number in memory, as a kernel reads it.
pub(super) fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}
