//! The pipeline benchmark: runs steps of the real workers, times each action on its device, and compares them
//! with a simulation that uses these times.

use std::time::Instant;

use collective::{Axis, Collective};
use device::{Category, Mark, Request, StreamKind};
use parallel::pipeline::{ActionKind, ActionPart, ActionTimes, Schedule, StageTimes, simulate};
use serde::{Deserialize, Serialize};
use telemetry::{RankStatistics, Statistic};
use tensor::Tensor;

use crate::error::{BenchError, Result};
use crate::options::{BenchOptions, median};
use crate::ranks::measure_ranks;
use crate::steps::{TimedSteps, timed_steps};
use config::RunConfig;
use worker::setup::blueprint;
use worker::{Setup, Worker, build};

/// Number of steps whose actions are timed.
const RECORDED: u64 = 3;
/// Number of timed transfers.
const TRANSFERS: u32 = 10;

/// One rank of a measured pipeline.
#[derive(Clone, Debug)]
pub struct PipelineRank {
    /// Stages of the rank with their layers, such as `0: 0-11`.
    pub stages: String,
    /// Milliseconds per step in which the rank computes.
    pub busy_milliseconds: f64,
    /// Measured fraction of the passes' time in which the rank does not compute.
    pub idle: f64,
    /// The fraction `idle`, simulated from the passes' times.
    pub simulated_idle: f64,
    /// Peak of allocated bytes.
    pub peak_allocated: u64,
    /// Peak of reserved bytes.
    pub peak_reserved: u64,
}

/// Result of measuring one schedule.
#[derive(Clone, Debug)]
pub struct PipelineMeasure {
    /// Name of the schedule.
    pub schedule: String,
    /// Number of stages per rank.
    pub chunks: usize,
    /// Model of the devices.
    pub device: String,
    /// Versions of the compute libraries.
    pub libraries: String,
    /// Number of parameters of the model, each counted once.
    pub parameters: usize,
    /// Seconds of the median step, timed without marks between actions.
    pub step_seconds: f64,
    /// Predicted seconds of the step, if the device has a description.
    pub predicted_seconds: Option<f64>,
    /// Number of tokens or images in a step.
    pub tokens: u64,
    /// Unit of the throughput, such as tokens/s.
    pub unit: &'static str,
    /// Milliseconds from the start of the first pass to the end of the last, over all ranks.
    pub passes_milliseconds: f64,
    /// Simulated milliseconds from the first pass to the last.
    pub simulated_milliseconds: f64,
    /// Milliseconds of one transfer between two stages while nothing else runs.
    pub transfer_milliseconds: f64,
    /// Bytes of the transferred tensor.
    pub transfer_bytes: u64,
    /// The loss of step `warm_up + steps`, counted from 1: the last step, unless the warm-up took more steps.
    pub loss: f32,
    /// All ranks of the first replica.
    pub ranks: Vec<PipelineRank>,
}

impl PipelineMeasure {
    /// Returns the tokens or images per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.step_seconds
    }

    /// Returns the measured idle fraction of the passes' time, averaged over ranks.
    pub fn bubble(&self) -> f64 {
        mean(self.ranks.iter().map(|rank| rank.idle))
    }

    /// Returns the simulated idle fraction, averaged over ranks.
    pub fn simulated_bubble(&self) -> f64 {
        mean(self.ranks.iter().map(|rank| rank.simulated_idle))
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    sum / count
}

/// Measures a step of a configuration with a pipeline. The ranks are threads of this process.
///
/// # Errors
/// A run fails or does not fit.
pub fn bench_pipeline(config: RunConfig, options: &BenchOptions) -> Result<PipelineMeasure> {
    let shared = options.clone();
    let (setup, measured) = measure_ranks(config, options.device, move |worker| measure(worker, &shared))?;
    conclude(&setup, measured)
}

/// Times of one rank's step, in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Recorded {
    /// Time from the start of the step to the end of the passes.
    span: u64,
    busy: u64,
    /// Stage, and times of forward, backward or its input half, and the weight half.
    passes: Vec<(usize, [u64; 3])>,
}

/// Times of all ranks, collected on rank 0.
struct Measured {
    seconds: Vec<f64>,
    loss: f32,
    /// Times by recorded step, then by rank.
    steps: Vec<Vec<Recorded>>,
    statistics: Vec<RankStatistics>,
    transfer: u64,
    parameters: usize,
}

fn measure(worker: &mut Worker, options: &BenchOptions) -> Result<Option<Measured>> {
    let TimedSteps { seconds, loss, next, .. } = timed_steps(worker, &mut None, options)?;
    let own = worker.statistics()?;
    let statistics = telemetry::gather(worker.control(), &own)?;
    let mut steps = Vec::new();
    for step in 0..RECORDED {
        let own = recorded_step(worker, next + step)?;
        let text = serde_json::to_vec(&own).unwrap_or_default();
        let all = worker.communicator().control.gather(0, &text)?.unwrap_or_default();
        steps.push(all.iter().filter_map(|text| serde_json::from_slice(text).ok()).collect());
    }
    let transfer = time_transfer(worker)?;
    let parameters = worker.parameters();
    Ok(statistics.map(|statistics| Measured { seconds, loss, steps, statistics, transfer, parameters }))
}

/// Runs one step, which all ranks begin together. Returns the times between its actions.
fn recorded_step(worker: &mut Worker, step: u64) -> Result<Recorded> {
    worker.device().synchronize()?;
    worker.communicator().control.barrier()?;
    let begun = worker.device().mark()?;
    // The last pass ends when the next phase begins.
    let (marks, end) = worker.marked_step(step)?;
    worker.device().synchronize()?;
    let Some(end) = end else { return Ok(Recorded::default()) };
    let time = |from: &Mark, to: &Mark| -> Result<u64> {
        let time = from.until(to)?.unwrap_or_default();
        Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    };
    let mut recorded = Recorded { span: time(&begun, &end)?, ..Recorded::default() };
    let mut passes: Vec<(usize, [Vec<f64>; 3])> = Vec::new();
    let mut open = None;
    let mut whole = 0;
    for (index, (action, part, mark)) in marks.iter().enumerate() {
        let next = marks.get(index + 1).map_or(&end, |(_, _, next)| next);
        if matches!(part, ActionPart::Waiting | ActionPart::Moving) {
            continue;
        }
        let took = time(mark, next)?;
        recorded.busy += took;
        // Copying inputs is attributed to the forward pass that uses them.
        whole = if open == Some(*action) { whole + took } else { took };
        open = Some(*action);
        let kind = match (part, action.kind) {
            (ActionPart::Inputs, _) => continue,
            (_, ActionKind::Forward) => 0,
            (_, ActionKind::BackwardWeight) => 2,
            _ => 1,
        };
        let position = passes.iter().position(|(stage, _)| *stage == action.stage).unwrap_or(passes.len());
        if position == passes.len() {
            passes.push((action.stage, Default::default()));
        }
        passes[position].1[kind].push(whole as f64);
    }
    let typical = |times: &Vec<f64>| if times.is_empty() { 0 } else { median(times) as u64 };
    recorded.passes = passes.iter().map(|(stage, times)| (*stage, times.each_ref().map(typical))).collect();
    Ok(recorded)
}

/// Returns the nanoseconds of one transfer between the first two stages' ranks while nothing else runs.
fn time_transfer(worker: &mut Worker) -> Result<u64> {
    let rank = worker.grid().rank();
    let first = worker.grid().rank_at(&Axis::ALL.map(|axis| (axis, 0)));
    let Some(boundary) = worker.blueprint().boundaries.first().copied() else { return Ok(0) };
    let second = worker.grid().seen_from(first)?.rank_at(&[(Axis::Pipeline, 1)]);
    worker.communicator().control.barrier()?;
    if ![first, second].contains(&rank) {
        return Ok(0);
    }
    let request = Request::new(Category::Communication, "transfer").on(StreamKind::Transfer);
    let tensor = Tensor::empty(worker.device(), boundary.shape, boundary.dtype, request)?;
    let group = &mut worker.communicator().group;
    group.synchronize(StreamKind::Transfer)?;
    let began = Instant::now();
    let region = tensor.region();
    let transfer = match rank == first {
        true => Collective::Send { to: second, region },
        false => Collective::Receive { from: first, region },
    };
    for _ in 0..TRANSFERS {
        group.run(transfer.clone(), StreamKind::Transfer)?;
    }
    group.synchronize(StreamKind::Transfer)?;
    Ok(u64::try_from((began.elapsed() / TRANSFERS).as_nanos()).unwrap_or(u64::MAX))
}

fn conclude(setup: &Setup, measured: Measured) -> Result<PipelineMeasure> {
    let config = &setup.config;
    let blueprint = &setup.blueprint;
    let schedule = blueprint::schedule(config)?;
    let ranks = config.parallel.grid().seen_from(0)?.group(Axis::Pipeline).ranks;
    let of_ranks = |step: &Vec<Recorded>| -> Vec<Recorded> {
        ranks.iter().filter_map(|rank| step.get(*rank).cloned()).collect()
    };
    // The median recorded step is used.
    let mut steps: Vec<_> = measured.steps.iter().map(of_ranks).collect();
    let span = |step: &Vec<Recorded>| step.iter().map(|rank| rank.span).max().unwrap_or(0);
    steps.sort_by_key(&span);
    let step = steps.get(steps.len() / 2).cloned().unwrap_or_default();
    let makespan = span(&step).max(1);
    let timeline = simulated(&schedule, &step, measured.transfer)?;
    let boundary = blueprint.boundaries.first();
    let rank = |(index, recorded): (usize, &Recorded)| {
        let peak = |statistic| measured.statistics.get(ranks[index]).map_or(0, |rank| rank.get(statistic));
        PipelineRank {
            stages: blueprint.layers_in_words(ranks[index]),
            busy_milliseconds: recorded.busy as f64 / 1e6,
            idle: 1.0 - recorded.busy as f64 / makespan as f64,
            simulated_idle: timeline.idle(index),
            peak_allocated: peak(Statistic::PeakAllocatedBytes),
            peak_reserved: peak(Statistic::PeakReservedBytes),
        }
    };
    let description = setup.placement.description();
    Ok(PipelineMeasure {
        schedule: schedule.kind.name().to_owned(),
        chunks: schedule.chunks(),
        device: description.model,
        libraries: description.libraries,
        parameters: measured.parameters,
        step_seconds: median(&measured.seconds),
        predicted_seconds: run::predicted_step(setup)?.map(|time| time.step_seconds),
        tokens: build::positions_per_step(config),
        unit: config.model.examples().rate(),
        passes_milliseconds: makespan as f64 / 1e6,
        simulated_milliseconds: timeline.makespan as f64 / 1e6,
        transfer_milliseconds: measured.transfer as f64 / 1e6,
        transfer_bytes: boundary.map_or(0, |cut| (cut.shape.elements() * cut.dtype.bytes()) as u64),
        loss: measured.loss,
        ranks: step.iter().enumerate().map(rank).collect(),
    })
}

/// Simulates the schedule with the measured times of its passes.
fn simulated(schedule: &Schedule, step: &[Recorded], transfer: u64) -> Result<parallel::pipeline::Timeline> {
    let none = StageTimes { forward: 0, backward_input: 0, backward_weight: 0 };
    let mut stages = vec![none; schedule.stages];
    for (stage, [forward, backward_input, backward_weight]) in step.iter().flat_map(|rank| &rank.passes) {
        if let Some(times) = stages.get_mut(*stage) {
            *times = StageTimes {
                forward: *forward,
                backward_input: *backward_input,
                backward_weight: *backward_weight,
            };
        }
    }
    let refused = |error: parallel::pipeline::ScheduleError| BenchError::Refused(error.to_string());
    simulate(schedule, &ActionTimes { stages, transfer }).map_err(refused)
}
