//! Views of gradients for the optimizer.

use nn::Parameters;
use tensor::Tensor;

use crate::data::buckets::{BucketLayout, BucketSlot};
use crate::data::zero::OptimizerShards;
use crate::error::{ParallelError, Result};

/// Views of the gradients of a rank's shards.
#[derive(Debug)]
pub(super) struct ShardGradients {
    /// View of the first use's gradient, by shard.
    pub(super) first: Vec<Tensor>,
    /// Views of the gradients of later uses, in the order of the uses, each with the index of its shard.
    pub(super) further: Vec<(usize, Tensor)>,
}

impl ShardGradients {
    /// Creates views of the gradients of this rank's `shards` in the buckets of `set`. The buckets are whole,
    /// or the shard of rank `part_of`.
    ///
    /// # Errors
    /// A parameter has no uses.
    pub(super) fn new(
        parameters: &Parameters,
        layout: &BucketLayout,
        shards: &OptimizerShards,
        (set, part_of): (&[Tensor], Option<usize>),
    ) -> Result<Self> {
        let mut uses_of: Vec<Vec<BucketSlot>> = vec![Vec::new(); parameters.list().len()];
        for (used, slot) in parameters.uses().iter().zip(&layout.slots) {
            uses_of[used.parameter.0].push(*slot);
        }
        let mut trained = parameters.list().iter().zip(&uses_of).filter(|(parameter, _)| parameter.trained);
        let unused = trained.find(|(_, slots)| slots.is_empty());
        if let Some((parameter, _)) = unused {
            return Err(ParallelError::MissingGradient { parameter: parameter.name.clone() });
        }
        let mut first = Vec::new();
        let mut further = Vec::new();
        for (index, owned) in shards.own().iter().enumerate() {
            let shape = parameters.list()[owned.parameter].weight.shape();
            let range = &owned.shard.range;
            for (number, slot) in uses_of[owned.parameter].iter().enumerate() {
                let bucket = &set[slot.bucket];
                let view = match part_of {
                    None => owned.slice(&bucket.view(slot.offset, shape)?)?,
                    Some(rank) => {
                        let first = slot.offset + range.start - rank * bucket.elements();
                        bucket.view(first, [range.len()])?
                    }
                };
                match number {
                    0 => first.push(view),
                    _ => further.push((index, view)),
                }
            }
        }
        Ok(ShardGradients { first, further })
    }
}
