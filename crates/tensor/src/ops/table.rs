//! Addresses of many tensors on the device, for operators that work on all parameters in one launch.

use std::cell::RefCell;

use device::{Device, workspace};

use crate::{Result, Tensor, TensorError};

/// A table for one operator's tensors, which stay where they are from call to call. It is written when an address is not
/// the one of the call before; where the backend is no GPU it has no bytes.
#[derive(Debug)]
pub struct Table {
    words: Tensor,
    tensors: usize,
    written: RefCell<Vec<u32>>,
}

impl Table {
    /// For [`super::adamw::step`] or [`super::sgd::step`] with that many items. Errors: out of memory.
    pub fn of_parameters(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "optimizer.table", tensors, workspace::parameter_table(tensors))
    }

    /// For [`super::norm::measure`] with that many gradients. Errors: out of memory.
    pub fn of_gradients(device: &Device, tensors: usize) -> Result<Self> {
        Self::new(device, "norm.table", tensors, workspace::gradient_table(tensors))
    }

    /// For [`super::norm::part_sums`] of that many parts. Errors: out of memory.
    pub fn of_parts(device: &Device, parts: usize) -> Result<Self> {
        Self::new(device, "norm.table", parts, workspace::gradient_parts_table(parts))
    }

    fn new(device: &Device, operator: &'static str, tensors: usize, bytes: usize) -> Result<Self> {
        let words = Tensor::workspace(device, operator, bytes)?;
        Ok(Table { words, tensors, written: RefCell::default() })
    }

    /// Refuses another number of tensors than the table was made for.
    pub(super) fn check(&self, operator: &'static str, tensors: usize) -> Result<()> {
        if tensors == self.tensors {
            return Ok(());
        }
        Err(TensorError::Count { operator, found: tensors, expected: self.tensors })
    }

    /// The table on the device, once it holds `words`.
    pub(super) fn holding(&self, words: Vec<u32>) -> Result<&Tensor> {
        if *self.written.borrow() != words {
            self.words.set(&words)?;
            *self.written.borrow_mut() = words;
        }
        Ok(&self.words)
    }
}

/// A 64-bit number as a kernel finds it in memory.
pub(super) fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}
