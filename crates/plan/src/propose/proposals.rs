//! The result of a search, as text and as JSON.

use std::fmt::{self, Write};

use collective::Axis;
use config::Parallel;
use serde_json::{Value, json};
use telemetry::table::aligned;
use telemetry::units::{bytes, counted};

use super::larger::LargerBatch;
use super::layout::Layout;
use super::nearest::Miss;
use super::proposal::{Proposal, with_crosses};
use super::trades::Trades;
use crate::step_time::assumed_in_words;

/// Configurations that fit, the fastest first, and statistics of the search.
#[derive(Clone, Debug)]
pub struct Proposals {
    /// Proposals that fit, the fastest first.
    pub list: Vec<Proposal>,
    /// The candidate that needs the least memory, if nothing fits.
    pub nearest: Option<Miss>,
    /// Changes that alter results slightly, applied to the first proposal or to the nearest candidate.
    pub trades: Trades,
    /// A proposal with a larger global batch, if a pipeline idles.
    pub larger: Option<LargerBatch>,
    /// Number of planned configurations.
    pub planned: usize,
    /// Number of candidates that cannot be planned.
    pub unplanned: usize,
    /// Reason why the first of them cannot be planned.
    pub reason: Option<String>,
    /// Number of all candidates.
    pub candidates: usize,
    pub(super) device_model: String,
    pub(super) capacity: u64,
    /// The device's real memory in bytes, which may differ from the size to fit.
    pub(super) own_capacity: u64,
    pub(super) ranks: usize,
    /// Number of samples in a step, equal for all proposals.
    pub(super) samples: usize,
    /// Assumed rates on which the predictions depend.
    pub(super) assumed: Vec<String>,
}

impl Miss {
    fn to_json(&self) -> Value {
        json!({
            "set": self.sets,
            "peak_reserved_bytes": self.needs,
            "available_bytes": self.available,
        })
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Miss { sets, needs, available } = self;
        let sets: Vec<_> = sets.iter().map(|set| format!("--set {set}")).collect();
        let sets = if sets.is_empty() { "the configuration as it is".to_owned() } else { sets.join(" ") };
        let lacks = bytes(needs.saturating_sub(*available));
        write!(f, "the nearest, {sets}, needs {} of {}: {lacks} more", bytes(*needs), bytes(*available))
    }
}

impl Proposals {
    /// Returns whether the list has a layout that differs from `layout` only in sharding, and `layout` shards
    /// more than optimizer state. The listed layout is faster, so sharding more gains nothing.
    pub(super) fn have_faster(&self, layout: &Layout) -> bool {
        layout.shards.zero_stage > 1 && self.list.iter().any(|other| other.layout.is_alike(layout))
    }

    /// Describes the bytes to fit, and the device's real memory if it differs.
    fn capacity_in_words(&self) -> String {
        let capacity = bytes(self.capacity);
        match self.capacity == self.own_capacity {
            true => capacity,
            false => format!("{capacity} (its own are {}: --fit without a size)", bytes(self.own_capacity)),
        }
    }

    fn times_in_words(&self) -> &'static str {
        let mut bases = self.list.iter().filter_map(|proposal| Some(proposal.time.as_ref()?.basis));
        match bases.next() {
            None => "no time is predicted here, and their order is an estimate",
            Some(basis) if basis.is_measured() => "times are predicted from the calls of a step on each rank",
            Some(_) => {
                "times are estimates from the calls of a step on each rank, by rates that were not measured \
                 on such a device"
            }
        }
    }

    /// Returns a line about candidates that cannot be planned, if there are any.
    fn unplanned_in_words(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or_default();
        match self.unplanned {
            0 => String::new(),
            count => format!("\n{} cannot be planned: {reason}", counted(count as u64, "candidate")),
        }
    }

    /// Writes the table of changes to the layout called `beside`, if there are any.
    fn write_trades(&self, f: &mut fmt::Formatter<'_>, beside: &str) -> fmt::Result {
        match self.trades.list.is_empty() {
            true => Ok(()),
            false => {
                write!(f, "\n\nchanges beside {beside} that alter results a little\n\n{}", self.trades)
            }
        }
    }

    /// Returns an object with `proposals`, the fastest first, each with its figures and the keys to `set`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let proposals: Vec<_> = self.list.iter().map(|proposal| proposal.to_json()).collect();
        json!({
            "device_model": self.device_model,
            "capacity_bytes": self.capacity,
            "device_bytes": self.own_capacity,
            "ranks": self.ranks,
            "samples_per_step": self.samples,
            "candidates": self.candidates,
            "planned": self.planned,
            "unplanned": self.unplanned,
            "unplanned_reason": self.reason,
            "nearest": self.nearest.as_ref().map(Miss::to_json),
            "trades": self.trades.to_json(),
            "assumed": self.assumed,
            "larger_batch": self.larger.as_ref().map(LargerBatch::to_json),
            "proposals": proposals,
        })
    }
}

impl fmt::Display for Proposals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proposals { samples, candidates, planned, .. } = self;
        let ranks = counted(self.ranks as u64, "rank");
        let model = &self.device_model;
        let capacity = self.capacity_in_words();
        let unplanned = self.unplanned_in_words();
        if self.list.is_empty() {
            let candidates = counted(*candidates as u64, "configuration");
            write!(f, "nothing fits: {candidates} of {ranks} on {model} with {capacity}")?;
            if let Some(nearest) = &self.nearest {
                write!(f, "; {nearest}")?;
            }
            write!(f, "{unplanned}")?;
            return self.write_trades(f, "the nearest");
        }
        let axes = with_crosses(Axis::ALL.into_iter().map(Axis::name));
        let titles = [
            &*axes,
            "schedule",
            "ZeRO",
            "recompute",
            "offload",
            "micro-batches",
            "step, ms",
            "tokens/s",
            "bubble",
            "exposed, ms",
            "peak reserved",
            "free",
            "sent in a step",
        ];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        rows.extend(self.list.iter().map(|proposal| proposal.row()));
        let samples = counted(*samples as u64, "sample");
        writeln!(f, "{ranks} on {model} with {capacity}, {samples} a step, the fastest first\n")?;
        write!(f, "{}", aligned(&rows, 5, &[1]))?;
        let mut more = String::new();
        if let Some(first) = self.list.first() {
            let sets: Vec<_> = first.sets.iter().map(|set| format!("--set {set}")).collect();
            let sets = if sets.is_empty() { "the configuration as it is".to_owned() } else { sets.join(" ") };
            let _ = write!(more, "\nthe first: {sets}\n");
            for key in [Parallel::lanes, Parallel::tensor_lanes, Parallel::context_lanes] {
                if first.sets.iter().any(|set| set.split('=').next() == Some(key)) {
                    let _ = writeln!(more, "({key} decides the bits of the weights)");
                }
            }
            if let Some(larger) = &self.larger {
                let _ = writeln!(more, "\n{larger}");
            }
        }
        let assumed = assumed_in_words(&self.assumed);
        let times = self.times_in_words();
        write!(
            f,
            "{more}\nPeaks are planned, to the byte ({planned} plans of {candidates} configurations); \
             {times}{assumed}.{unplanned}"
        )?;
        self.write_trades(f, "the first")
    }
}
