//! The tables of an embedding.

use tensor::Tensor;

use crate::weight::Weight;

/// A table of tokens, `[vocabulary, width]`.
#[derive(Clone, Copy, Debug)]
pub enum TokenTable<'a> {
    /// The whole table.
    Whole(&'a Weight),
    /// The shards of its rows that are here.
    Shards {
        /// Equal runs of rows.
        tables: &'a [Weight],
        /// Whether the result is the rows that are here, of those that are sharded between layers.
        shards_rows: bool,
    },
}

/// A table of positions, `[context, width]`.
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
