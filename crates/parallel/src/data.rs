//! Data parallelism: every rank has the whole stage and runs other micro-batches.

mod buckets;
mod groups;
mod lanes;
mod reduction;
mod shards;
mod sharing;
mod tree;
mod uses;

pub use buckets::{BucketLayout, Gradient, Place};
pub use lanes::Lanes;
pub use reduction::{GradientReduction, MicroBatchSink, Reduction, ReductionOptions};
pub use shards::{Piece, Shards};
pub(crate) use sharing::between_compute;
pub use sharing::{gather_sums, gather_weights};
pub use tree::{TreeSum, tree_sums};
pub use uses::Uses;
