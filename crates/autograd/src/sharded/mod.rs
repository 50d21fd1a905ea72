//! Values on the tape, sharded over ranks.
//!
//! The one idea: a value is the blocks of it that a rank holds and one [`Placement`] for each axis along
//! which ranks share a model: [`Axis::Tensor`](collective::Axis::Tensor), whose ranks have shards of layers,
//! and [`Axis::Context`](collective::Axis::Context), whose ranks have pieces of sequences. An operator that
//! knows nothing of ranks computes block by block ([`map`]); [`Var::redistribute`] is what communicates. How
//! many blocks an axis has is configuration and decides bits; how many of them a rank holds does not.
//!
//! A value of one block, such as every value of a layer that nothing divides, costs what its tensor costs.

mod gradient_sums;
mod map;
mod pieces;
mod placement;
mod ranks;
mod redistribute;
mod sequence;
mod shards;
mod var;
mod walk;

pub(crate) use map::map_all;
pub use map::{FromBlocks, map};
pub use pieces::{Piece, Pieces};
pub use placement::{BlockIndex, Dimension, Placement, Placements};
pub use var::{Source, Var};

pub(crate) use gradient_sums::GradientSums;
pub(crate) use pieces::part;
pub(crate) use ranks::{TensorRanks, give};
pub(crate) use sequence::joined;

pub(crate) use var::ValueId;
