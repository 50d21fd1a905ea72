//! Values on the tape, sharded over ranks.
//!
//! The one idea: a value consists of the blocks that a rank holds, and one [`Placement`] for each axis along
//! which ranks share a model. Ranks along [`Axis::Tensor`](collective::Axis::Tensor) hold shards of layers;
//! ranks along [`Axis::Context`](collective::Axis::Context) hold pieces of sequences. Operators that know
//! nothing of ranks compute block by block ([`map`]); only [`Var::redistribute`] communicates. The number of
//! blocks along an axis is configuration and affects bits; the number of blocks on a rank does not.
//!
//! A value of one block, such as any value of an undivided layer, costs as much as its tensor.

mod gradient_sums;
mod iteration;
mod map;
mod pieces;
mod placement;
mod ranks;
mod redistribute;
mod sequence;
mod shards;
mod var;

pub use iteration::each_shard;
pub(crate) use map::map_all;
pub use map::{FromBlocks, map};
pub use pieces::{Pieces, SequencePiece};
pub use placement::{BlockIndex, Dimension, Placement, Placements};
pub use var::{Source, Var};

pub(crate) use gradient_sums::GradientSums;
pub(crate) use pieces::part;
pub(crate) use ranks::{TensorRanks, give};
pub(crate) use sequence::joined;

pub(crate) use var::ValueId;
