//! The memory of whole gradients that ranks keep even though gradient sums are sharded, and the setting that
//! avoids it.

use std::fmt;

use collective::Axis;
use serde::Serialize;
use telemetry::units::bytes;
use worker::Setup;

use crate::error::Result;
use crate::plan::Plan;

/// Whole gradients of lanes of several micro-batches, which are summed before ranks exchange shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WholeGradients {
    /// `parallel.zero_stage`.
    #[serde(skip)]
    pub zero_stage: u32,
    /// `parallel.lanes`.
    pub lanes: usize,
    /// Number of micro-batches in a lane.
    pub micro_batches_per_lane: usize,
    /// Bytes of all gradients of a rank.
    pub bytes: u64,
}

impl WholeGradients {
    /// Returns the cost on the rank of `plan`; `None` if gradients are not sharded or lanes have one
    /// micro-batch.
    pub(crate) fn from_plan(setup: &Setup, plan: &Plan) -> Result<Option<Self>> {
        let config = &setup.config;
        let blueprint = &setup.blueprint;
        let micro_batches_per_lane = config.training_assignment().micro_batches_per_lane();
        if !config.parallel.shards_gradients() || micro_batches_per_lane == 1 {
            return Ok(None);
        }
        let grid = config.parallel.grid().seen_from(plan.rank)?;
        let stages = blueprint.stages_of(grid.coordinate(Axis::Pipeline));
        let elements: usize = stages.flat_map(|stage| &blueprint.buckets(stage).elements).sum();
        Ok(Some(WholeGradients {
            zero_stage: config.parallel.zero_stage,
            lanes: config.parallel.lanes,
            micro_batches_per_lane,
            bytes: (elements * config.precision.gradients.bytes()) as u64,
        }))
    }
}

impl fmt::Display for WholeGradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WholeGradients { zero_stage, lanes, micro_batches_per_lane, bytes: kept } = self;
        write!(
            f,
            "parallel.lanes = {lanes}: at parallel.zero_stage = {zero_stage}, a rank keeps whole gradients \
             for lanes of {micro_batches_per_lane} micro-batches, {}; parallel.lanes = {} needs none, with \
             other bits, and exchanges gradients after every micro-batch",
            bytes(*kept),
            lanes * micro_batches_per_lane
        )
    }
}
