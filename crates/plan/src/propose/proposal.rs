//! A proposal, as a table row and as JSON.

use std::fmt;

use collective::Axis;
use serde_json::{Value, json};
use telemetry::GridSizes;
use telemetry::units::{bytes, grouped};

use super::layout::Layout;
use super::shards::Shards;
use crate::step_time::StepTime;

/// A configuration that fits.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// Keys to set, each as `section.key=value`.
    pub sets: Vec<String>,
    pub(super) layout: Layout,
    /// Predicted step; `None` on a CPU, and for pipelines with thousands of passes in a step.
    pub time: Option<StepTime>,
    /// Peak reserved bytes of the rank with the most.
    pub needs: u64,
    /// Bytes available to each device's allocator.
    pub available: u64,
    /// Bytes sent per step by the rank that sends the most.
    pub sent: u64,
}

/// Joins the names or sizes of axes with ` x `.
pub(super) fn with_crosses(parts: impl Iterator<Item = impl ToString>) -> String {
    parts.map(|part| part.to_string()).collect::<Vec<_>>().join(" x ")
}

/// Describes what is offloaded; the flags are for state and weights.
fn offloaded_in_words(offloaded: [bool; 2]) -> Option<&'static str> {
    match offloaded {
        [_, true] => Some("state, weights"),
        [true, false] => Some("state"),
        [false, false] => None,
    }
}

impl Proposal {
    /// Returns the predicted seconds of a step, infinite without a prediction, as a sort key.
    pub(super) fn order(&self) -> f64 {
        self.time.as_ref().map_or(f64::INFINITY, |time| time.step_seconds)
    }

    pub(super) fn row(&self) -> Vec<String> {
        let Layout { grid, micro_batch, micro_batches, .. } = self.layout;
        let timed =
            |words: &dyn Fn(&StepTime) -> String| self.time.as_ref().map_or_else(|| "-".to_owned(), words);
        let yes = |flag: bool, word: &str| if flag { word.to_owned() } else { "-".to_owned() };
        vec![
            with_crosses(grid.axes().map(|(_, size)| size)),
            yes(grid.size(Axis::Pipeline) > 1, self.layout.schedule.name()),
            self.layout.shards.in_words(self.layout.grid.size(Axis::Data)).unwrap_or_else(|| "-".to_owned()),
            yes(self.layout.recomputed, "block"),
            offloaded_in_words(self.layout.offloaded).unwrap_or("-").to_owned(),
            format!("{micro_batch} x {micro_batches}"),
            timed(&|time| format!("{:.1}", 1e3 * time.step_seconds)),
            timed(&|time| grouped(time.tokens_per_second as u64)),
            timed(&|time| format!("{:.1} %", 100.0 * time.pipeline_idle)),
            timed(&|time| {
                format!("{:.1}", 1e3 * (time.parts.exchange_seconds() + time.parts.reduction_seconds))
            }),
            bytes(self.needs),
            bytes(self.available.saturating_sub(self.needs)),
            bytes(self.sent),
        ]
    }

    pub(super) fn to_json(&self) -> Value {
        let layout = &self.layout;
        let time = self.time.as_ref();
        let Shards { zero_stage, owners, lanes } = layout.shards;
        json!({
            "set": self.sets,
            "grid": layout.grid.named().collect::<GridSizes>(),
            "schedule": layout.schedule.name(),
            "zero_stage": zero_stage,
            "ranks_that_share_state": if zero_stage > 0 { owners } else { 1 },
            "lanes": lanes,
            "recompute": layout.recomputed,
            "offload_state": layout.offloaded[0],
            "offload_weights": layout.offloaded[1],
            "micro_batch_size": layout.micro_batch,
            "micro_batches": layout.micro_batches,
            "step_seconds": time.map(|time| time.step_seconds),
            "tokens_per_second": time.map(|time| time.tokens_per_second),
            "bubble": time.map(|time| time.pipeline_idle),
            "predicted": time,
            "peak_reserved_bytes": self.needs,
            "available_bytes": self.available,
            "step_bytes_sent": self.sent,
        })
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { grid, schedule, shards, recomputed, offloaded, micro_batch, micro_batches } =
            self.layout;
        let sizes = with_crosses(grid.axes().map(|(_, size)| size));
        write!(f, "{sizes}, {micro_batches} micro-batches of {micro_batch}")?;
        if grid.size(Axis::Pipeline) > 1 {
            write!(f, ", {}", schedule.name())?;
        }
        if let Some(sharded) = shards.in_words(grid.size(Axis::Data)) {
            write!(f, ", ZeRO-{sharded}")?;
        }
        f.write_str(if recomputed { ", recomputed blocks" } else { "" })?;
        if let Some(words) = offloaded_in_words(offloaded) {
            write!(f, ", offloaded {words}")?;
        }
        write!(f, ": {} at the peak", bytes(self.needs))
    }
}
