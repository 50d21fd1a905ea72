//! The memory effect of FP8 matmuls.

use std::fmt;

use config::Precision;
use device::Category;
use serde::Serialize;
use telemetry::Statistic;
use telemetry::units::bytes;
use worker::Setup;

use crate::compared::plan_with;
use crate::error::Result;
use crate::plan::Plan;

/// Peak memory with FP8 matmuls, compared with matmuls in the compute dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fp8Cost {
    /// Bytes of the weights' FP8 copies.
    pub copies_bytes: u64,
    /// Peak of allocated bytes, on the rank with the most.
    pub peak_bytes: u64,
    /// Peak of allocated bytes if all matmuls were in the compute dtype.
    pub peak_bytes_in_compute: u64,
}

impl Fp8Cost {
    /// Plans the rank of `largest` without FP8 for comparison; `None` if no matmul is in FP8.
    pub(crate) fn from_plan(setup: &Setup, largest: &Plan) -> Result<Option<Self>> {
        if setup.config.fp8.is_none() {
            return Ok(None);
        }
        let sets = [format!("{}=compute", Precision::matmul)];
        let compute = plan_with(setup, &sets, largest.rank)?;
        let parameters = Statistic::LiveBytes(Category::Parameter);
        Ok(Some(Fp8Cost {
            copies_bytes: largest.counters.get(parameters).saturating_sub(compute.counters.get(parameters)),
            peak_bytes: largest.counters.get(Statistic::PeakAllocatedBytes),
            peak_bytes_in_compute: compute.counters.get(Statistic::PeakAllocatedBytes),
        }))
    }
}

impl fmt::Display for Fp8Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fp8Cost { copies_bytes, peak_bytes, peak_bytes_in_compute } = *self;
        write!(
            f,
            "matmuls in FP8: {} at the peak, of which {} are FP8 copies of weights, and {} without FP8",
            bytes(peak_bytes),
            bytes(copies_bytes),
            bytes(peak_bytes_in_compute)
        )
    }
}
