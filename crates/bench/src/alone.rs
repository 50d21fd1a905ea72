//! The part of a step that one rank computes, as a configuration of one rank.

use collective::GridShape;
use config::RunConfig;

/// Returns the configuration of the same step on one rank, with at most `most` micro-batches.
pub(crate) fn alone(config: &RunConfig, most: usize) -> RunConfig {
    let mut alone = config.clone();
    let assignment = config.training_assignment();
    let of_lane = assignment.micro_batches_per_lane().min(most);
    let mut lanes = assignment.lanes_of(0);
    while lanes > 1 && lanes * of_lane > most {
        lanes /= 2;
    }
    alone.parallel.set_grid(GridShape::from_sizes(|_| 1));
    (alone.parallel.lanes, alone.parallel.zero_stage, alone.parallel.profile) = (lanes, 0, None);
    alone.train.global_batch_size = lanes * of_lane * alone.train.micro_batch_size;
    alone
}
