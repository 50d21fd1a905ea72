//! Proposes larger global batches, with which a pipeline is less idle. They change training, so they are
//! listed separately.

use std::fmt;

use config::{Parallel, Train};
use serde_json::{Value, json};
use telemetry::units::grouped;

use super::Search;
use super::layout::Layout;
use super::proposal::Proposal;
use crate::error::Result;

/// Pipeline idle fraction from which on larger batches are proposed.
const IDLE: f64 = 0.05;
/// Throughput ratio from which on a larger batch is proposed.
const GAIN: f64 = 1.02;
/// Multiples of the global batch that are tried.
const MULTIPLES: [usize; 4] = [2, 4, 8, 16];

/// A proposal with a larger global batch, compared with the same configuration otherwise.
#[derive(Clone, Debug)]
pub struct LargerBatch {
    /// The proposed configuration.
    pub proposal: Proposal,
    /// Number of samples in a step.
    pub samples: usize,
    /// Number of samples in a step as configured.
    pub samples_before: usize,
    /// Tokens per second with the configured global batch, and with the larger one.
    pub tokens_per_second: [f64; 2],
    /// Idle fraction of the pipeline with the configured global batch, and with the larger one.
    pub idle: [f64; 2],
}

impl Search {
    /// Finds a larger batch for the fastest pipeline of `list` that idles too much. Returns the smallest
    /// multiple of the global batch with which it no longer does, else the largest multiple that fits and is
    /// faster; `None` if there is none.
    ///
    /// # Errors
    /// Planning fails for a reason other than refusing a candidate.
    pub(super) fn larger(&self, list: &[Proposal]) -> Result<Option<LargerBatch>> {
        let idle = |proposal: &Proposal| proposal.time.as_ref().map_or(0.0, |time| time.pipeline_idle);
        let Some(first) = list.iter().find(|proposal| idle(proposal) >= IDLE) else { return Ok(None) };
        let speed = |proposal: &Proposal| proposal.time.as_ref().map_or(0.0, |time| time.tokens_per_second);
        let samples_before = self.config.train.global_batch_size;
        let mut best: Option<LargerBatch> = None;
        for multiple in MULTIPLES {
            let (sets, layout) = multiplied(first, samples_before, multiple);
            let planned = match self.proposal(&sets, layout) {
                Err(error) if error.is_out_of_memory() || error.exit_status() == 2 => None,
                planned => planned?,
            };
            let Some(proposal) = planned.filter(|proposal| speed(proposal) >= GAIN * speed(first)) else {
                break;
            };
            let tokens_per_second = [first, &proposal].map(speed);
            let idle = [first, &proposal].map(idle);
            let samples = samples_before * multiple;
            best = Some(LargerBatch { proposal, samples, samples_before, tokens_per_second, idle });
            if idle[1] < IDLE {
                break;
            }
        }
        Ok(best)
    }
}

/// Returns the keys and layout of a proposal with `multiple` times its samples. Lanes of one micro-batch keep
/// one micro-batch.
fn multiplied(first: &Proposal, samples: usize, multiple: usize) -> (Vec<String>, Layout) {
    let mut layout = first.layout;
    let has_short_lanes = layout.shards.zero_stage >= 2 && layout.shards.lanes == layout.micro_batches;
    layout.micro_batches *= multiple;
    let mut sets = first.sets.clone();
    sets.push(format!("{}={}", Train::global_batch_size, samples * multiple));
    if has_short_lanes {
        layout.shards.lanes = layout.micro_batches;
        sets.retain(|set| set.split('=').next() != Some(Parallel::lanes));
        sets.push(format!("{}={}", Parallel::lanes, layout.micro_batches));
    }
    (sets, layout)
}

impl LargerBatch {
    pub(super) fn to_json(&self) -> Value {
        let mut object = self.proposal.to_json();
        object["samples_per_step"] = json!(self.samples);
        object["tokens_per_second_before"] = json!(self.tokens_per_second[0]);
        object
    }
}

impl fmt::Display for LargerBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LargerBatch { proposal, samples, samples_before, tokens_per_second, idle } = self;
        let [before, after] = tokens_per_second.map(|speed| grouped(speed as u64));
        let [idle_before, idle_after] = idle.map(|idle| 100.0 * idle);
        let sets: Vec<_> = proposal.sets.iter().map(|set| format!("--set {set}")).collect();
        write!(
            f,
            "a larger global batch, which changes the run: with {} samples a step instead of {}, the pipeline \
             idles {idle_after:.1} % of the time instead of {idle_before:.1} %, {after} tokens/s instead of \
             {before}: {}",
            grouped(*samples as u64),
            grouped(*samples_before as u64),
            sets.join(" ")
        )
    }
}
