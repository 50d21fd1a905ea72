//! `plimsoll plan --schedule`: the actions of every pipeline rank in a step, over time.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parallel::pipeline::{ActionTimes, Schedule, StageTimes, Timeline, loads, simulate, svg, text};
use telemetry::units::grouped;

use crate::costs::Costs;
use crate::error::{PlanError, Result};
use crate::overhead::DeviceRanks;
use crate::prepare::prepare_shapes;
use crate::target::PlanOptions;
use config::RunConfig;
use worker::Placement;
use worker::Setup;

/// Resolution of pictures, in parts of a step.
const PARTS: u64 = 1000;

/// A step of a configuration's pipeline over time. Passes take the work counted on Meta, or the times of the
/// configuration's profile; transfers are assumed to be hidden.
#[derive(Clone, Debug)]
pub struct PlannedSchedule {
    schedule: Arc<Schedule>,
    /// The schedule, in parts of the step.
    timeline: Timeline,
    /// The shortest pass.
    shortest: u64,
    stages: Vec<PlannedStage>,
    /// The profile from which passes' times were read.
    profile: Option<PathBuf>,
}

/// Properties of a stage.
#[derive(Clone, Debug)]
struct PlannedStage {
    rank: usize,
    layers: String,
    /// The stage's share of the work of all stages.
    share: f64,
    activations: usize,
    weights: usize,
    received: usize,
}

/// Plans the schedule of a configuration on a device like the chosen one.
///
/// # Errors
/// As for [`plan_run`](crate::plan_run).
pub fn plan_schedule(config: RunConfig, options: &PlanOptions) -> Result<PlannedSchedule> {
    let ranks = DeviceRanks::of(&config);
    let description = options.target.device(options.capacity, ranks)?.description(ranks);
    PlannedSchedule::of(&prepare_shapes(config, Placement::Meta(description))?)
}

impl PlannedSchedule {
    /// Returns the schedule of a run.
    ///
    /// # Errors
    /// Errors of a layer on Meta.
    pub fn of(setup: &Setup) -> Result<Self> {
        let (config, blueprint) = (&setup.config, &setup.blueprint);
        let costs = Costs::of(config, &setup.dataset, &setup.placement.description())?;
        let schedule = Arc::clone(&blueprint.schedule);
        let stages: Vec<StageTimes> = blueprint.stages.iter().map(|stage| costs.of_stage(stage)).collect();
        let refused = |error: parallel::pipeline::ScheduleError| PlanError::Refused(error.to_string());
        let timeline =
            simulate(&schedule, &ActionTimes { stages: stages.clone(), transfer: 0 }).map_err(refused)?;
        let work = |times: &StageTimes| times.forward + times.backward_input + times.backward_weight;
        let all = stages.iter().map(work).sum::<u64>().max(1);
        let loads = loads(&schedule).stages;
        let planned = stages.iter().zip(&loads).enumerate().map(|(number, (times, load))| {
            let layers = &blueprint.stages[number].layers;
            PlannedStage {
                rank: schedule.rank_of(number),
                layers: format!("{}-{}", layers.start, layers.end.saturating_sub(1)),
                share: work(times) as f64 / all as f64,
                activations: load.peak.activations,
                weights: load.peak.weights,
                received: load.peak.received_forward + load.peak.received_backward,
            }
        });
        let passes = |times: &StageTimes| [times.forward, times.backward_input, times.backward_weight];
        let shortest = stages.iter().flat_map(passes).filter(|time| *time > 0).min().unwrap_or(1);
        let unit = (timeline.makespan / PARTS).max(1);
        let (timeline, shortest) = (timeline.in_units(unit), (shortest / unit).max(1));
        let profile = costs.profile().map(Path::to_path_buf);
        Ok(PlannedSchedule { stages: planned.collect(), timeline, shortest, schedule, profile })
    }

    /// The share of the passes' time in which ranks wait for each other.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        self.timeline.bubble()
    }

    /// The source of the times of passes, in words.
    #[must_use]
    pub fn times(&self) -> String {
        match &self.profile {
            None => "timed by counted FLOPs and bytes".to_owned(),
            Some(path) => format!("timed by {}", path.display()),
        }
    }

    /// Draws the schedule as SVG.
    pub fn svg(&self) -> String {
        svg(&self.schedule, &self.timeline, "‰ of the step")
    }
}

impl fmt::Display for PlannedSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", text(&self.schedule, &self.timeline, self.shortest))?;
        writeln!(
            f,
            "one column: the shortest pass; times in thousandths of the step, {}; transfers are \
             taken to be hidden\n",
            self.times()
        )?;
        writeln!(
            f,
            "{:>5} {:>5} {:>12} {:>8} {:>12} {:>8} {:>9}",
            "stage", "rank", "layers", "work", "activations", "weights", "received"
        )?;
        for (number, stage) in self.stages.iter().enumerate() {
            let (share, held) = (100.0 * stage.share, grouped(stage.activations as u64));
            let PlannedStage { rank, layers, weights, received, .. } = stage;
            writeln!(
                f,
                "{number:>5} {rank:>5} {layers:>12} {share:>6.1} % {held:>12} {weights:>8} {received:>9}"
            )?;
        }
        write!(f, "activations, weights, received: micro-batches at most, not necessarily at once")
    }
}
