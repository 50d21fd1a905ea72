//! The memory of lanes, and the setting that reduces it.

use std::fmt;

use config::RunConfig;
use device::Category;
use parallel::data::Lanes;
use serde_json::{Value, json};
use telemetry::Statistic;
use telemetry::units::bytes;
use worker::Setup;

use crate::error::{PlanError, Result};
use crate::plan::Plan;

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
    /// Gradient sets that a rank keeps.
    pub sets: usize,
    /// Bytes of all sets, on the rank that needs most.
    pub bytes: u64,
}

impl LaneCost {
    /// Returns the cost on the rank of `plan`; `None` if one set is enough. Errors: none for a checked
    /// configuration.
    pub(crate) fn of(setup: &Setup, plan: &Plan) -> Result<Option<Self>> {
        let RunConfig { parallel, train, .. } = &*setup.config;
        let lanes = Lanes::new(parallel.lanes, train.micro_batches(), parallel.data);
        let lanes = lanes.map_err(|error| PlanError::Refused(error.to_string()))?;
        let cost = LaneCost {
            lanes: parallel.lanes,
            local: lanes.local,
            data: parallel.data,
            ranks: setup.config.world_size() / parallel.data * parallel.lanes,
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
        let LaneCost { lanes, local, data, ranks, sets, .. } = self;
        let extra = bytes(self.extra_bytes());
        write!(
            f,
            "parallel.lanes = {lanes}: {sets} gradient sets on a rank for its {local} lanes, {}; \
             parallel.lanes = {data} would need one, {extra} less, with other bits; parallel.data = {lanes} \
             too, with the same bits, on {ranks} ranks",
            bytes(self.bytes)
        )
    }
}
