//! Buffers: named tensors of a model's state that no optimizer updates.

use autograd::Tape;
use device::{Category, Device, Element, Request};
use tensor::{Shape, Tensor};

use crate::error::{NnError, Result};

/// A named tensor of a model's state that is not a parameter, for example a running mean, a counter, or a
/// table of positions.
///
/// A buffer has no gradient, is not reduced over ranks, and is not part of `weights_sha256`. The first
/// data-parallel rank of its stage stores it in checkpoints by name; every rank restores it. A buffer that
/// training does not change must be equal on all ranks. A clone refers to the same tensor.
#[derive(Clone, Debug)]
pub struct ModelBuffer {
    name: String,
    tensor: Tensor,
}

impl ModelBuffer {
    /// Creates a buffer of `T`'s dtype with these initial values.
    ///
    /// # Errors
    /// Memory is exhausted, or the number of values is not the shape's.
    pub fn new<T: Element>(
        device: &Device,
        name: &str,
        shape: impl Into<Shape>,
        values: &[T],
    ) -> Result<Self> {
        let scope = device.module(name);
        let request = Request::new(Category::Buffer, "buffer");
        let tensor = Tensor::empty(device, shape, T::DTYPE, request)?;
        drop(scope);
        tensor.set(values).map_err(|error| NnError::from(error).inside(name))?;
        Ok(ModelBuffer { name: name.to_owned(), tensor })
    }

    /// Creates a buffer that is a view of a shared array.
    pub(crate) fn part(name: String, tensor: Tensor) -> Self {
        ModelBuffer { name, tensor }
    }

    /// Name in checkpoints, with the model's global layer numbers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The values; use [`ModelBuffer::to_update`] to write them.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns the tensor for writing new values if `tape` belongs to a training step. Returns `None` in a
    /// rehearsal, recomputation or evaluation, which must not change buffers. New values must not change a
    /// layer's output for the same micro-batch, because a recomputation reads them.
    pub fn to_update(&self, tape: &Tape) -> Option<&Tensor> {
        tape.mode().updates_buffers().then_some(&self.tensor)
    }
}
