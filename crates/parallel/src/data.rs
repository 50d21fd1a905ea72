//! Data parallelism: every rank has the whole stage and runs other micro-batches.

mod buckets;
mod lanes;
mod reduction;
mod tree;

pub use buckets::{BucketLayout, Place};
pub use lanes::Lanes;
pub use reduction::{GradientReduction, MicroBatchSink, ReductionOptions};
pub use tree::tree_all_reduce;
