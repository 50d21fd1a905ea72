//! The memory of per-lane gradients, and the setting that reduces it.

use std::fmt;

use collective::Axis;
use config::RunConfig;
use device::Category;
use serde_json::{Value, json};
use telemetry::Statistic;
use telemetry::units::bytes;
use worker::Setup;

use crate::error::Result;
use crate::plan::{Plan, lanes};

/// Memory of the gradient sets that a rank keeps for its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneCost {
    /// `parallel.lanes`.
    pub lanes: usize,
    /// Number of lanes on the rank.
    pub local: usize,
    /// Number of data-parallel ranks.
    pub data: usize,
    /// World size if every lane had its own data-parallel rank.
    pub ranks: usize,
    /// Whether one lane per data-parallel rank is possible.
    pub divides: bool,
    /// Number of gradient sets that the rank keeps.
    pub sets: usize,
    /// Bytes of all sets, on the rank with the most.
    pub bytes: u64,
}

impl LaneCost {
    /// Returns the memory that lanes cost the rank of `plan`; `None` if one gradient set suffices or
    /// gradients are sharded (see [`WholeGradients`](crate::WholeGradients)).
    pub(crate) fn from_plan(setup: &Setup, plan: &Plan) -> Result<Option<Self>> {
        let RunConfig { parallel, train, .. } = &*setup.config;
        if parallel.shards_gradients() {
            return Ok(None);
        }
        let lanes = lanes(setup, parallel.grid().seen_from(plan.rank)?.coordinate(Axis::Data))?;
        let cost = LaneCost {
            lanes: parallel.lanes,
            local: lanes.local(),
            data: parallel.data,
            ranks: setup.config.world_size() / parallel.data * parallel.lanes,
            divides: train.micro_batches().is_multiple_of(parallel.data),
            sets: lanes.sets(),
            bytes: plan.counters.get(Statistic::LiveBytes(Category::Gradient)),
        };
        Ok(Some(cost).filter(|cost| cost.sets > 1))
    }

    /// Returns the cost as in `plimsoll plan --json`.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "lanes": self.lanes,
            "lanes_of_a_rank": self.local,
            "gradient_sets": self.sets,
            "bytes": self.bytes,
            "extra_bytes": self.extra_bytes(),
        })
    }

    /// Returns the bytes of all sets but the first.
    #[must_use]
    pub fn extra_bytes(&self) -> u64 {
        self.bytes - self.bytes / self.sets as u64
    }
}

impl fmt::Display for LaneCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaneCost { lanes, local, data, ranks, sets, divides, .. } = self;
        let extra = bytes(self.extra_bytes());
        write!(
            f,
            "parallel.lanes = {lanes}: {sets} gradient sets on a rank for its {local} lanes, {}; ",
            bytes(self.bytes)
        )?;
        match divides {
            true => writeln!(
                f,
                "parallel.lanes = {data} would need one, {extra} less, with other bits; parallel.data = \
                 {lanes} too, with the same bits, on {ranks} ranks"
            ),
            false => writeln!(
                f,
                "parallel.data = {lanes} would need one, {extra} less, with the same bits, on {ranks} ranks"
            ),
        }?;
        write!(
            f,
            "a lane is the sum over some micro-batches of a step, kept apart so that any number of ranks adds \
             up the same bits; a gradient set is one gradient of every trained parameter"
        )
    }
}
