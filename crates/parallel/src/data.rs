//! Data parallelism: every rank has a whole stage and runs its own share of the micro-batches.

mod assignment;
mod buckets;
mod buffer_assignment;
mod collectives;
mod gather;
mod groups;
mod lanes;
mod matrices;
mod options;
mod reduction;
mod stream_order;
mod visits;
mod weight_layout;
mod weight_units;
mod zero;

pub use assignment::Assignment;
pub use buckets::{BucketEnd, BucketLayout, BucketSlot, Gradient};
pub use collectives::DataCollectives;
pub use gather::{broadcast_parts, gather_counts, gather_parts, gather_rows, gather_sums, gather_weights};
pub use lanes::Lanes;
pub use matrices::{MatrixOwners, MatrixParameter, MatrixPart, MatrixScale, StageRanks, matrix_peers};
pub use options::{Reduction, ReductionOptions};
pub(crate) use reduction::SinkPhase;
pub use reduction::{GradientObserver, GradientReduction, MicroBatchSink, SharedTensors, round_sets};
pub(crate) use stream_order::between_compute;
pub use weight_layout::WeightLayout;
pub use weight_units::{UnitOptions, WeightUnits, WorkKind};
pub use zero::{OptimizerShards, ParameterShard, shards_gradients, shards_optimizer, shards_weights};
