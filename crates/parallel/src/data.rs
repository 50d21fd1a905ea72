//! Data parallelism: every rank has the whole stage and runs its own share of the micro-batches.

mod assignment;
mod buckets;
mod collectives;
mod gather;
mod groups;
mod lanes;
mod options;
mod reduction;
mod weight_bucket;
mod zero;

pub use assignment::Assignment;
pub use buckets::{BucketLayout, BucketSlot, Gradient};
pub use collectives::DataCollectives;
pub(crate) use gather::between_compute;
pub use gather::{gather_rows, gather_sums, gather_weights};
pub use lanes::Lanes;
pub use options::{Reduction, ReductionOptions};
pub(crate) use reduction::SinkPhase;
pub use reduction::{GradientReduction, MicroBatchSink, SharedTensors};
pub use weight_bucket::WeightBucket;
pub use zero::{OptimizerShards, ParameterShard, shards_optimizer};
