//! The buffers of the whole model. Every rank knows them, and the ranks of a stage hold its buffers.

use std::collections::BTreeMap;

use device::DType;
use nn::Model;
use tensor::Shape;

use crate::error::{Result, WorkerError};

/// A buffer of the whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferEntry {
    /// Name in checkpoints.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
    /// (stage, index in the stage) of the buffer that is saved. Other stages with a buffer of this name hold
    /// copies.
    pub holder: (usize, usize),
}

/// Collects the buffers of stages, in stage order.
#[derive(Debug, Default)]
pub(crate) struct BufferList {
    entries: Vec<BufferEntry>,
    by_name: BTreeMap<String, usize>,
}

impl BufferList {
    /// Adds the buffers of a stage.
    ///
    /// # Errors
    /// Another stage has a buffer of the same name with another type or shape.
    pub(crate) fn add(&mut self, stage: usize, model: &dyn Model) -> Result<()> {
        for (number, buffer) in model.buffers().iter().enumerate() {
            let name = buffer.name().to_owned();
            let tensor = buffer.tensor();
            let dtype = tensor.dtype();
            let shape = tensor.shape();
            let holder = (stage, number);
            match self.by_name.get(&name).map(|position| &self.entries[*position]) {
                None => {
                    self.by_name.insert(name.clone(), self.entries.len());
                    self.entries.push(BufferEntry { name, dtype, shape, holder });
                }
                Some(first) if (first.dtype, first.shape) == (dtype, shape) => {}
                Some(first) => {
                    let first_stage = first.holder.0;
                    let first_dtype = first.dtype;
                    let first_shape = first.shape;
                    return Err(WorkerError::Refused(format!(
                        "buffer {name} is {first_dtype} {first_shape} in stage {first_stage} and {dtype} \
                         {shape} in stage {stage}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Returns the buffers.
    ///
    /// # Errors
    /// A buffer has a parameter's name.
    pub(crate) fn finish(self, is_parameter: impl Fn(&str) -> bool) -> Result<Vec<BufferEntry>> {
        match self.entries.iter().find(|entry| is_parameter(&entry.name)) {
            Some(entry) => {
                Err(WorkerError::Refused(format!("{} names a parameter and a buffer", entry.name)))
            }
            None => Ok(self.entries),
        }
    }
}
