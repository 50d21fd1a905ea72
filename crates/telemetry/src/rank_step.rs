//! Memory and times of one rank's steps, by phase: sent to rank 0 during a run, and written to
//! `metrics.jsonl`.

use std::collections::BTreeMap;

use memory::Usage;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::expert_loads::ExpertLoads;
use crate::gpu::GpuLoad;
use crate::wire;

/// Key of the validation among a step's phases.
pub const VALIDATION: &str = "validation";

/// Memory and time of one phase of a step on one rank. Bytes include the allocator's rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseFigures {
    /// Mean microseconds over the steps since the previous record; `None` if not timed yet, and for
    /// validation.
    pub microseconds: Option<u64>,
    /// Bytes allocated when the phase was first entered.
    pub before_bytes: u64,
    /// Bytes allocated when the phase was last left.
    pub after_bytes: u64,
    /// Peak of allocated bytes during the phase.
    pub peak_allocated_bytes: u64,
    /// Peak of reserved bytes during the phase.
    pub peak_reserved_bytes: u64,
}

impl PhaseFigures {
    /// Starts a phase with the current memory use.
    #[must_use]
    pub fn begin(now: Usage) -> Self {
        PhaseFigures {
            microseconds: None,
            before_bytes: now.allocated,
            after_bytes: now.allocated,
            peak_allocated_bytes: now.allocated,
            peak_reserved_bytes: now.reserved,
        }
    }

    /// Adds an interval of the phase with its peak; `now` is the use at its end.
    pub fn add(&mut self, peak: Usage, now: Usage) {
        self.after_bytes = now.allocated;
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(peak.allocated);
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(peak.reserved);
    }

    /// Returns the phase's peaks.
    #[must_use]
    pub fn peak(&self) -> Usage {
        Usage { allocated: self.peak_allocated_bytes, reserved: self.peak_reserved_bytes }
    }
}

/// Memory of one rank, and its most demanding step since the previous record: an entry of `ranks` in
/// `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStep {
    /// The rank.
    pub rank: usize,
    /// Bytes allocated now.
    pub allocated_bytes: u64,
    /// Bytes reserved now.
    pub reserved_bytes: u64,
    /// Bytes that the rank may reserve: its limit, or the whole device.
    pub capacity_bytes: u64,
    /// Peak of the allocated bytes since the start of the run.
    pub peak_allocated_bytes: u64,
    /// Peak of the reserved bytes since the start of the run.
    pub peak_reserved_bytes: u64,
    /// The step with the highest peak since the previous record, from 1; the latest of equals.
    pub step: u64,
    /// Peak of the allocated bytes in that step.
    pub step_peak_allocated_bytes: u64,
    /// Peak of the reserved bytes in that step.
    pub step_peak_reserved_bytes: u64,
    /// Figures of that step's phases by name, and of [`VALIDATION`] if one ran since the previous record.
    /// Phases that the step did not enter are absent.
    pub phases: BTreeMap<String, PhaseFigures>,
    /// The load of the rank's GPU; `None` on a CPU, and on hosts without NVML.
    pub gpu: Option<GpuLoad>,
}

/// The values that a rank sends to rank 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRecord {
    /// Memory and times.
    pub figures: RankStep,
    /// Expert loads of the rank's stages in the last step. Only one of the ranks that share these experts
    /// sends them.
    pub expert_loads: Vec<ExpertLoads>,
}

impl RankRecord {
    /// Encodes the record as a message (bincode).
    pub fn encode(&self) -> Result<Vec<u8>> {
        wire::encode(self.figures.rank, self)
    }

    /// Decodes a message received from rank `from`.
    ///
    /// # Errors
    /// The message was not written by [`RankRecord::encode`] of this version.
    pub fn decode(from: usize, message: &[u8]) -> Result<Self> {
        wire::decode(from, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_travel_as_messages_and_as_json() {
        let now = Usage { allocated: 5, reserved: 9 };
        let peak = Usage { allocated: 7, reserved: 9 };
        let mut forward = PhaseFigures::begin(now);
        forward.add(peak, Usage { allocated: 6, reserved: 9 });
        forward.add(now, now);
        assert_eq!((forward.before_bytes, forward.after_bytes, forward.peak()), (5, 5, peak));
        let phases = BTreeMap::from([("forward".to_owned(), forward)]);
        let record =
            RankStep { rank: 3, step: 41, step_peak_allocated_bytes: 7, phases, ..RankStep::default() };
        let expert_loads = vec![ExpertLoads { layer: 1, tokens: vec![4, 0] }];
        let sent = RankRecord { figures: record.clone(), expert_loads };
        let message = sent.encode().unwrap();
        assert_eq!(RankRecord::decode(3, &message).unwrap(), sent);
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["phases"]["forward"]["peak_allocated_bytes"], 7);
        assert_eq!(serde_json::from_value::<RankStep>(json).unwrap(), record);
        let error = RankRecord::decode(3, &message[1..]).unwrap_err().to_string();
        assert!(error.contains("rank 3"), "{error}");
        let longer = [&message[..], &[0]].concat();
        assert!(RankRecord::decode(3, &longer).unwrap_err().to_string().contains("1 bytes are left over"));
    }
}
