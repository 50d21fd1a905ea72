//! `plimsoll plan`: what every rank of a configuration would use, without running it.

use std::fmt;
use std::time::{Duration, Instant};

use memory::Category;
use telemetry::run_files::Grid;
use telemetry::table::memory_table;
use telemetry::units::{bytes, grouped};
use telemetry::{RankStatistics, Statistic};

use crate::config::{Memory, Recompute, RunConfig};
use crate::error::Result;
use crate::placement::{DeviceChoice, Imitated};
use crate::plan::plan_all;
use crate::recompute;
use crate::worker::Setup;

/// What every rank will use, to the byte.
#[derive(Clone, Debug)]
pub struct PlanReport {
    /// The device that was imitated, in words.
    pub on: String,
    /// As in `summary.json`.
    pub device: &'static str,
    /// How the ranks are laid out.
    pub grid: Grid,
    /// Settings of memory, with what was chosen for `recompute = "auto"`.
    pub memory: Memory,
    /// The counters of every rank after the last step; of those that grow with every step, such as what was sent, as many as
    /// planning took.
    pub ranks: Vec<RankStatistics>,
    /// How long planning took.
    pub took: Duration,
}

/// Plans the whole run, on as many ranks as the configuration has, on a device of the chosen kind: the one at hand, or for
/// GPUs where there is none an H200. Nothing is allocated and nothing written.
///
/// Errors: a configuration, data or settings that are wrong; a run that does not fit on such a device.
pub fn plan_run(config: RunConfig, choice: DeviceChoice) -> Result<PlanReport> {
    let began = Instant::now();
    let Imitated { placement, device, on } = Imitated::find(choice)?;
    let setup = recompute::settle(Setup::new(config, placement)?)?;
    let parallel = &setup.config.parallel;
    let grid = Grid { data: parallel.data, pipeline: parallel.pipeline };
    let ranks = plan_all(&setup)?.into_iter().map(|plan| plan.counters).collect();
    let memory = setup.config.memory.clone();
    Ok(PlanReport { on, device, grid, memory, ranks, took: began.elapsed() })
}

impl PlanReport {
    /// `device`, `world_size`, `grid` and `ranks` under the keys that they have in `summary.json`.
    pub fn to_json(&self) -> serde_json::Value {
        let planned = |statistic: &Statistic| is_planned(*statistic).then(|| statistic.name().into_owned());
        let kept: Vec<_> = Statistic::all().iter().filter_map(planned).collect();
        let entry = |rank: &RankStatistics| {
            let mut entry = rank.to_json();
            entry.retain(|key, _| ["rank", "device"].contains(&key.as_str()) || kept.contains(key));
            entry
        };
        let ranks: Vec<_> = self.ranks.iter().map(entry).collect();
        serde_json::json!({
            "device": self.device,
            "world_size": self.ranks.len(),
            "grid": self.grid,
            "recompute": self.memory.recompute,
            "recompute_layers": self.memory.recompute_layers,
            "ranks": ranks,
        })
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "planned for {}, in {:.1} s\n", self.on, self.took.as_secs_f64())?;
        write!(f, "{}", memory_table(&self.ranks))?;
        if self.memory.recompute != Recompute::None {
            writeln!(f, "\nwith {}", recompute::in_words(&self.memory))?;
        }
        let Some(most) = self.ranks.iter().max_by_key(|rank| rank.get(Statistic::PeakAllocatedBytes)) else {
            return Ok(());
        };
        writeln!(f, "\nat the peak of rank {}", most.rank)?;
        let mut parts: Vec<_> =
            Category::ALL.map(|category| (most.get(Statistic::PeakBytes(category)), category)).into();
        parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let peak = most.get(Statistic::PeakAllocatedBytes).max(1) as f64;
        for (count, category) in parts.into_iter().filter(|(count, _)| *count > 0) {
            let (name, share) = (category.name(), 100.0 * count as f64 / peak);
            writeln!(f, "{name:<20} {:>18} ({:>10}) {share:>6.1} %", grouped(count), bytes(count))?;
        }
        Ok(())
    }
}

/// What does not grow with the number of steps: steps that would change nothing are not run.
fn is_planned(statistic: Statistic) -> bool {
    matches!(
        statistic,
        Statistic::AllocatedBytes
            | Statistic::ReservedBytes
            | Statistic::PeakAllocatedBytes
            | Statistic::PeakReservedBytes
            | Statistic::RequestedBytes
            | Statistic::LiveBytes(_)
            | Statistic::PeakBytes(_)
    )
}
