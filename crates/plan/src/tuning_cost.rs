//! The memory saved by training only some parameters.

use std::fmt;

use config::{LoraSection, Train};
use serde::Serialize;
use telemetry::Statistic;
use telemetry::units::{bytes, grouped};
use worker::Setup;

use crate::compared::plan_with;
use crate::error::Result;
use crate::plan::Plan;

/// Numbers of trained and frozen parameters, and peak memory compared with training all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TuningCost {
    /// Number of elements of trained parameters.
    pub trained: u64,
    /// Number of elements of frozen parameters.
    pub frozen: u64,
    /// Peak of allocated bytes, on the rank with the most.
    pub peak_bytes: u64,
    /// Peak of allocated bytes if all parameters were trained.
    pub peak_bytes_of_all: u64,
}

impl TuningCost {
    /// Plans the rank of `largest` with all parameters trained for comparison; `None` if they already are.
    pub(crate) fn from_plan(setup: &Setup, largest: &Plan) -> Result<Option<Self>> {
        if setup.config.tuning.trains_all() {
            return Ok(None);
        }
        let trained: usize = setup.blueprint.gradient_sizes().iter().sum();
        let all: usize = setup.blueprint.sizes().iter().sum();
        let sets = [
            format!("{}=[]", Train::freeze),
            format!("{}=0", LoraSection::rank),
            format!("{}=", LoraSection::from),
        ];
        let full = plan_with(setup, &sets, largest.rank)?;
        Ok(Some(TuningCost {
            trained: trained as u64,
            frozen: (all - trained) as u64,
            peak_bytes: largest.counters.get(Statistic::PeakAllocatedBytes),
            peak_bytes_of_all: full.counters.get(Statistic::PeakAllocatedBytes),
        }))
    }
}

impl fmt::Display for TuningCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TuningCost { trained, frozen, peak_bytes, peak_bytes_of_all } = *self;
        write!(
            f,
            "{} of {} parameters are trained: {} at the peak, and {} if all were",
            grouped(trained),
            grouped(trained + frozen),
            bytes(peak_bytes),
            bytes(peak_bytes_of_all)
        )
    }
}
