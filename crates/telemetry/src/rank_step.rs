//! The memory and times of one rank's steps, by phase: sent to rank 0 during a run, and part of
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

/// Memory and time of a phase of one step on one rank. Bytes are those of blocks, rounding included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseFigures {
    /// Mean time over the steps since the record before; `None` if no time is known yet, and of a validation.
    pub microseconds: Option<u64>,
    /// Bytes allocated when the phase was first entered.
    pub before_bytes: u64,
    /// Bytes allocated when the phase was last left.
    pub after_bytes: u64,
    /// The most bytes allocated in the phase.
    pub peak_allocated_bytes: u64,
    /// The most bytes reserved in the phase.
    pub peak_reserved_bytes: u64,
}

impl PhaseFigures {
    /// Begins a phase at which `now` is in use.
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

    /// Adds a part of the phase with its peaks, after which `now` is in use.
    pub fn add(&mut self, peak: Usage, now: Usage) {
        self.after_bytes = now.allocated;
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(peak.allocated);
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(peak.reserved);
    }

    /// The phase's peaks.
    #[must_use]
    pub fn peak(&self) -> Usage {
        Usage { allocated: self.peak_allocated_bytes, reserved: self.peak_reserved_bytes }
    }
}

/// Memory of one rank, and the step that needed most of it since the record before. An entry of `ranks` in
/// `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStep {
    /// The rank.
    pub rank: usize,
    /// Bytes allocated now.
    pub allocated_bytes: u64,
    /// Bytes reserved now.
    pub reserved_bytes: u64,
    /// Bytes that the rank may reserve: its limit, or all of its device.
    pub capacity_bytes: u64,
    /// Peak of the allocated bytes since the start of the run.
    pub peak_allocated_bytes: u64,
    /// Peak of the reserved bytes since the start of the run.
    pub peak_reserved_bytes: u64,
    /// The step with the highest peak since the record before, from 1; the latest of several.
    pub step: u64,
    /// Peak of the allocated bytes in that step.
    pub step_peak_allocated_bytes: u64,
    /// Peak of the reserved bytes in that step.
    pub step_peak_reserved_bytes: u64,
    /// Figures of the phases of that step by name, and of [`VALIDATION`] if there was one since the record
    /// before. Phases that the step did not enter are absent.
    pub phases: BTreeMap<String, PhaseFigures>,
    /// The load of the rank's GPU; `None` on a CPU, and on hosts without NVIDIA's management library.
    pub gpu: Option<GpuLoad>,
}

/// The figures of one rank that travel to rank 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRecord {
    /// Memory and times.
    pub figures: RankStep,
    /// The loads of the experts of its stages in the last step, on one of the ranks that have them.
    pub expert_loads: Vec<ExpertLoads>,
}

impl RankRecord {
    /// Encodes the record as a message (bincode).
    pub fn encode(&self) -> Result<Vec<u8>> {
        wire::encode(self.figures.rank, self)
    }

    /// Decodes a message of rank `from`.
    ///
    /// # Errors
    /// A message that [`RankRecord::encode`] of this version did not write.
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
