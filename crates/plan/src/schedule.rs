//! `plimsoll plan --schedule`: the actions of every pipeline rank during a step.

use std::fmt;
use std::sync::Arc;

use parallel::pipeline::{
    ActionKind, ActionTimes, Schedule, Span, StageTimes, Timeline, loads, simulate, svg, text,
};
use telemetry::units::grouped;

use crate::costs::Costs;
use crate::error::{PlanError, Result};
use crate::imitated::PlanDevice;
use crate::overhead::DeviceRanks;
use crate::resolve::Resolved;
use crate::target::PlanOptions;
use crate::timed_step::TimedStep;
use config::RunConfig;
use worker::Placement;
use worker::Setup;

/// Resolution of pictures, in parts of a step.
const PARTS: u64 = 1000;

/// The timeline of a step's pipeline schedule. On a GPU, passes begin and end as in the predicted step.
/// Elsewhere they take the work counted on Meta, or the times of the configured profile, and transfers are
/// assumed to be hidden.
#[derive(Clone, Debug)]
pub struct PlannedSchedule {
    schedule: Arc<Schedule>,
    /// The schedule's timeline, in parts of the step.
    timeline: Timeline,
    /// Duration of the shortest pass.
    shortest: u64,
    stages: Vec<PlannedStage>,
    /// Source of the passes' times, for users.
    times: String,
}

#[derive(Clone, Debug)]
struct PlannedStage {
    rank: usize,
    layers: String,
    share: f64,
    activations: usize,
    weights: usize,
    received: usize,
}

/// Plans the schedule of a configuration on a device like the chosen one.
pub fn plan_schedule(config: RunConfig, options: &PlanOptions) -> Result<PlannedSchedule> {
    let ranks = DeviceRanks::from_config(&config);
    let device = options.target.device(options.capacity, ranks)?;
    let description = device.description(ranks);
    let setup = Resolved::new(config, &description)?.setup(Placement::Meta(description))?;
    PlannedSchedule::from_setup(&setup, &device)
}

/// Timeline of all ranks' passes.
struct TimedPasses {
    timeline: Timeline,
    stages: Vec<StageTimes>,
    /// Source of the times, for users.
    source: String,
}

impl TimedPasses {
    /// Returns the passes of a predicted step; `None` if they do not match the schedule.
    fn predicted(schedule: &Schedule, passes: &[Vec<[f64; 2]>]) -> Option<Self> {
        let begin = passes.iter().flatten().map(|[begin, _]| *begin).fold(f64::INFINITY, f64::min);
        // Nanosecond resolution suffices for passes.
        let nanoseconds = |seconds: f64| (1e9 * (seconds - begin)).round() as u64;
        let mut totals = vec![[(0, 0); 3]; schedule.stages];
        let mut spans = Vec::new();
        let mut busy = Vec::new();
        for (actions, passes) in schedule.actions.iter().zip(passes) {
            let mut next = passes.iter();
            let mut last = 0;
            let mut sum = 0;
            let mut of_rank = Vec::with_capacity(actions.len());
            for action in actions {
                if !action.kind.is_compute() {
                    of_rank.push(Span { start: last, end: last });
                    continue;
                }
                let [start, end] = next.next()?.map(nanoseconds);
                last = end;
                sum += end - start;
                let (time, count) = &mut totals[action.stage][part_of(action.kind)];
                (*time, *count) = (*time + (end - start), *count + 1);
                of_rank.push(Span { start, end });
            }
            if next.next().is_some() {
                return None;
            }
            spans.push(of_rank);
            busy.push(sum);
        }
        let makespan = spans.iter().flatten().map(|span| span.end).max()?;
        let mean = |(time, count): (u64, u64)| time.checked_div(count).unwrap_or(0);
        let stages = totals.iter().map(|[forward, input, weight]| StageTimes {
            forward: mean(*forward),
            backward_input: mean(*input),
            backward_weight: mean(*weight),
        });
        let timeline = Timeline { spans, makespan, busy };
        let source = "timed by the calls of a step".to_owned();
        Some(TimedPasses { timeline, stages: stages.collect(), source })
    }

    /// Simulates the schedule with pass times from counted work or a profile.
    fn simulated(setup: &Setup) -> Result<Self> {
        let config = &setup.config;
        let blueprint = &setup.blueprint;
        let costs = Costs::from_config(config, &setup.dataset, &setup.placement.description())?;
        let stages: Vec<StageTimes> = blueprint.stages.iter().map(|stage| costs.of_stage(stage)).collect();
        let refused = |error: parallel::pipeline::ScheduleError| PlanError::Refused(error.to_string());
        let times = ActionTimes { stages: stages.clone(), transfer: 0 };
        let timeline = simulate(&blueprint.schedule, &times).map_err(refused)?;
        let basis = match costs.profile() {
            None => "counted FLOPs and bytes".to_owned(),
            Some(path) => path.display().to_string(),
        };
        let source = format!("timed by {basis}, with hidden transfers");
        Ok(TimedPasses { timeline, stages, source })
    }
}

/// Returns the index of a pass: 0 forward, 1 input half or whole of backward, 2 weight half.
fn part_of(kind: ActionKind) -> usize {
    match kind {
        ActionKind::Forward => 0,
        ActionKind::BackwardWeight => 2,
        _ => 1,
    }
}

impl PlannedSchedule {
    /// Returns the schedule of a run on devices like `device`.
    pub fn from_setup(setup: &Setup, device: &PlanDevice) -> Result<Self> {
        // No time is predicted if the device is too small.
        let timed = match TimedStep::predict(setup, device) {
            Err(error) if error.is_out_of_memory() => None,
            timed => timed?,
        };
        Self::timed(setup, timed.as_ref())
    }

    /// Returns the schedule of a run with the predicted step `timed`, if any.
    pub(crate) fn timed(setup: &Setup, timed: Option<&TimedStep>) -> Result<Self> {
        let blueprint = &setup.blueprint;
        let schedule = Arc::clone(&blueprint.schedule);
        let predicted = timed.and_then(|timed| TimedPasses::predicted(&schedule, &timed.passes));
        let TimedPasses { timeline, stages, source } = match predicted {
            Some(passes) => passes,
            None => TimedPasses::simulated(setup)?,
        };
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
        let timeline = timeline.in_units(unit);
        let shortest = (shortest / unit).max(1);
        Ok(PlannedSchedule { stages: planned.collect(), timeline, shortest, schedule, times: source })
    }

    /// Returns the fraction of the passes' time in which ranks wait for each other.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        self.timeline.bubble()
    }

    /// Returns the source of the passes' times, for users.
    #[must_use]
    pub fn times(&self) -> String {
        self.times.clone()
    }

    /// Draws the schedule as an SVG.
    pub fn svg(&self) -> String {
        svg(&self.schedule, &self.timeline, "‰ of the step")
    }
}

impl fmt::Display for PlannedSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", text(&self.schedule, &self.timeline, self.shortest))?;
        writeln!(f, "one column: the shortest pass; times in thousandths of the step, {}\n", self.times)?;
        writeln!(
            f,
            "{:>5} {:>5} {:>12} {:>8} {:>12} {:>8} {:>9}",
            "stage", "rank", "layers", "work", "activations", "weights", "received"
        )?;
        for (number, stage) in self.stages.iter().enumerate() {
            let share = 100.0 * stage.share;
            let held = grouped(stage.activations as u64);
            let PlannedStage { rank, layers, weights, received, .. } = stage;
            writeln!(
                f,
                "{number:>5} {rank:>5} {layers:>12} {share:>6.1} % {held:>12} {weights:>8} {received:>9}"
            )?;
        }
        write!(f, "activations, weights, received: micro-batches at most, not necessarily at once")
    }
}
