//! The memory saved by FP8 matmuls.

use std::fmt;

use config::Precision;
use device::Category;
use serde_json::{Value, json};
use telemetry::Statistic;
use telemetry::units::bytes;
use worker::Setup;

use crate::compared::plan_with;
use crate::error::Result;
use crate::plan::Plan;

/// The peak with FP8 matmuls compared with matmuls in the compute type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8Cost {
    /// Bytes of FP8 copies of weights.
    pub copies: u64,
    /// Peak of allocated bytes, on the rank that needs most.
    pub peak: u64,
    /// The peak if all matmuls were in the compute type, found by a plan for a device that they fit.
    pub compute_peak: u64,
}

impl Fp8Cost {
    /// Returns the cost on the rank of `largest`; `None` if no matmul is in FP8.
    pub(crate) fn of(setup: &Setup, largest: &Plan) -> Result<Option<Self>> {
        if setup.config.fp8.is_none() {
            return Ok(None);
        }
        let sets = [format!("{}=compute", Precision::matmul)];
        let compute = plan_with(setup, &sets, largest.rank)?;
        let parameters = Statistic::LiveBytes(Category::Parameter);
        Ok(Some(Fp8Cost {
            copies: largest.counters.get(parameters).saturating_sub(compute.counters.get(parameters)),
            peak: largest.counters.get(Statistic::PeakAllocatedBytes),
            compute_peak: compute.counters.get(Statistic::PeakAllocatedBytes),
        }))
    }

    /// Returns the cost under the keys of `plimsoll plan --json`.
    pub(crate) fn to_json(self) -> Value {
        let Fp8Cost { copies, peak, compute_peak } = self;
        json!({"copies_bytes": copies, "peak_bytes": peak, "peak_bytes_in_compute": compute_peak})
    }
}

impl fmt::Display for Fp8Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fp8Cost { copies, peak, compute_peak } = *self;
        write!(
            f,
            "matmuls in FP8: {} at the peak, of which {} are FP8 copies of weights, and {} without FP8",
            bytes(peak),
            bytes(copies),
            bytes(compute_peak)
        )
    }
}
