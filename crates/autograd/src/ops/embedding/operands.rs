//! The tables of an embedding.

use tensor::Tensor;

use crate::weight::Weight;

/// A table of token embeddings, `[vocabulary, width]`.
#[derive(Clone, Copy, Debug)]
pub enum TokenTable<'a> {
    /// The whole table.
    Whole(&'a Weight),
    /// The local shards of its rows.
    Shards {
        /// The shards: equal runs of rows.
        tables: &'a [Weight],
        /// Whether rows of activations are sharded between layers, so that the result is the local rows only.
        shards_rows: bool,
    },
}

/// A table of position embeddings, `[context, width]`.
#[derive(Clone, Copy, Debug)]
pub enum Positions<'a> {
    /// A parameter.
    Learned(&'a Weight),
    /// A constant table.
    Fixed(&'a Tensor),
}

impl<'a> Positions<'a> {
    pub(super) fn tensor(self) -> tensor::Result<Tensor> {
        match self {
            Positions::Learned(weight) => weight.stored(),
            Positions::Fixed(tensor) => Ok(tensor.clone()),
        }
    }

    pub(super) fn weight(self) -> Option<&'a Weight> {
        match self {
            Positions::Learned(weight) => Some(weight),
            Positions::Fixed(_) => None,
        }
    }
}
