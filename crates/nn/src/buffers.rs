//! Buffers: named tensors of a model's state that no optimizer updates.

use autograd::Tape;
use device::{Category, Device, Element, Request};
use tensor::{Shape, Tensor};

use crate::error::{NnError, Result};

/// A named tensor of a model's state that is not a parameter: a running mean, a counter, a table of
/// positions.
///
/// It has no gradient, is not reduced over ranks, and is not part of `weights_sha256`. Checkpoints store it
/// by name, from the first data-parallel rank of its stage; every rank restores it. A buffer that training
/// does not change is equal on all ranks. A clone refers to the same tensor.
#[derive(Clone, Debug)]
pub struct ModelBuffer {
    name: String,
    tensor: Tensor,
}

impl ModelBuffer {
    /// Makes a buffer of `T`'s type with these initial values.
    ///
    /// # Errors
    /// Out of memory, or a count other than the shape's.
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

    /// Returns a buffer that is a part of an array which others share.
    pub(crate) fn part(name: String, tensor: Tensor) -> Self {
        ModelBuffer { name, tensor }
    }

    /// The name in checkpoints, with the model's global layer numbers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The values, for reading.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns the tensor to write new values into if `tape` belongs to a pass of a training step; `None` in
    /// a rehearsal, a recomputation or an evaluation, which leave buffers unchanged. Values written must not
    /// change a layer's output for the same micro-batch, because a recomputation reads them.
    pub fn to_update(&self, tape: &Tape) -> Option<&Tensor> {
        tape.mode().updates_buffers().then_some(&self.tensor)
    }
}
