//! The part of a step that one rank computes, as a configuration of one rank.

use collective::GridShape;
use config::RunConfig;

/// Returns the configuration of the same step on one rank, with at most `most` micro-batches.
pub(crate) fn on_one_rank(config: &RunConfig, most: usize) -> RunConfig {
    let mut own = config.clone();
    let assignment = config.training_assignment();
    let of_lane = assignment.micro_batches_per_lane().min(most);
    let mut lanes = assignment.lanes_of(0);
    while lanes > 1 && lanes * of_lane > most {
        lanes /= 2;
    }
    own.parallel.set_grid(GridShape::from_sizes(|_| 1));
    (own.parallel.lanes, own.parallel.zero_stage, own.parallel.profile) = (lanes, 0, None);
    own.train.global_batch_size = lanes * of_lane * own.train.micro_batch_size;
    own
}
