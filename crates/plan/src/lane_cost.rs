//! The memory of lanes, and the setting that reduces it.

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

/// Gradient sets that a rank keeps for its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneCost {
    /// `parallel.lanes`.
    pub lanes: usize,
    /// Lanes of a rank.
    pub local: usize,
    /// Data-parallel ranks.
    pub data: usize,
    /// Ranks of a grid with a data-parallel rank for each lane.
    pub ranks: usize,
    /// Whether there may be one lane for each data-parallel rank.
    pub divides: bool,
    /// Gradient sets that a rank keeps.
    pub sets: usize,
    /// Bytes of all sets, on the rank that needs most.
    pub bytes: u64,
}

impl LaneCost {
    /// Returns the cost on the rank of `plan`; `None` if one set is enough, or if gradients are sharded
    /// ([`WholeGradients`](crate::WholeGradients)).
    pub(crate) fn of(setup: &Setup, plan: &Plan) -> Result<Option<Self>> {
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

    /// Returns the cost under the keys of `plimsoll plan --json`.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "lanes": self.lanes,
            "lanes_of_a_rank": self.local,
            "gradient_sets": self.sets,
            "bytes": self.bytes,
            "extra_bytes": self.extra_bytes(),
        })
    }

    /// Bytes of the sets beyond the first.
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
