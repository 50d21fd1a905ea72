//! Measures scaling: the training step of a configuration on all of its ranks.

use std::time::Duration;

use collective::{Axis, Communicator, ControlChannel, threads};
use telemetry::RankStatistics;
use telemetry::scaling::{RankFigures, Scaling, ScalingRun};

use crate::cycled::cycled;
use crate::error::{BenchError, Result};
use crate::options::{BenchOptions, median};
use crate::steps::{TimedSteps, control, timed_steps};
use crate::timeline;
use config::RunConfig;
use plan::recompute;
use run::ChosenPlacement;
use run::Startup;
use run::{RunError, failure};
use worker::DeviceChoice;
use worker::build;
use worker::{Setup, Worker};

/// A training step to measure on as many ranks as its configuration has.
#[derive(Clone, Debug)]
pub struct ScalingCase {
    /// The model's name in reports.
    pub model: String,
    /// Series of the case: strong, weak or alone.
    pub scaling: Scaling,
    /// Configuration of the step.
    pub config: RunConfig,
    /// Number of worlds that run the configuration at the same time. If there are several, or for
    /// [`Scaling::Alone`], each has one rank on its own device. They begin together and do not communicate
    /// while computing.
    pub worlds: usize,
}

impl ScalingCase {
    fn ranks(&self) -> usize {
        self.all_worlds().world_size()
    }

    /// Returns a configuration with the ranks of all worlds as replicas.
    fn all_worlds(&self) -> RunConfig {
        let mut all = self.config.clone();
        let grid = all.parallel.grid();
        all.parallel.set_grid(grid.with_size(Axis::Data, self.worlds * grid.size(Axis::Data)));
        all
    }
}

/// Measures `case` with ranks as threads of this process, and frees all memory.
pub fn bench_scaling(case: ScalingCase, options: &BenchOptions) -> Result<ScalingRun> {
    bench_scaling_as(Startup::alone(), vec![case], options)?.ok_or(RunError::Reported { status: 0 }.into())
}

/// Measures the case of `cases` whose number of ranks matches this process's job; without a job, the only
/// case. Returns `None` on ranks other than 0.
///
/// # Errors
/// A run fails, or not exactly one case has the job's number of ranks.
pub fn bench_scaling_as(
    mut startup: Startup,
    cases: Vec<ScalingCase>,
    options: &BenchOptions,
) -> Result<Option<ScalingRun>> {
    let prepared = only(&startup, cases).and_then(|case| prepare(&startup, case, options));
    let (case, setup) = startup.agree(prepared)?;
    let same = startup.check_same(&setup, "none");
    startup.agree(same)?;
    let in_job = startup.is_in_job();
    let measured = launch(startup, &setup, &case, &named(options, &case))?;
    let Some(ranks) = measured.ranks.filter(|ranks| !ranks.is_empty()) else { return Ok(None) };
    let steps = measured.steps;
    let config = &setup.config;
    let parallel = &setup.config.parallel;
    let train = &setup.config.train;
    let description = setup.placement.description();
    let extreme = |pick: fn(f64, f64) -> f64| steps.seconds.iter().copied().reduce(pick);
    let reduction = if case.scaling == Scaling::Alone { "none" } else { parallel.reduction.name() };
    Ok(Some(ScalingRun {
        parameters: measured.parameters as u64,
        device: setup.placement.name().to_owned(),
        device_model: description.model,
        libraries: description.libraries,
        precision: config.precision.name(),
        scaling: case.scaling,
        ranks: case.ranks(),
        ranks_are: if in_job { "processes" } else { "threads" }.to_owned(),
        reduction: reduction.to_owned(),
        shard_optimizer: parallel.shards_optimizer(),
        micro_batch: train.micro_batch_size,
        micro_batches: train.micro_batches() * case.worlds,
        tokens: build::positions_per_step(config) * case.worlds as u64,
        unit: config.model.examples().rate().to_owned(),
        steps: options.steps,
        warm_up: options.warm_up,
        warm_up_seconds: options.warm_up_time.as_secs_f64(),
        warm_up_steps: steps.warm_up,
        round: 1,
        step_seconds: median(&steps.seconds),
        predicted_step_seconds: run::predicted_step(&setup)?.map(|time| time.step_seconds),
        least_seconds: extreme(f64::min).unwrap_or(f64::NAN),
        most_seconds: extreme(f64::max).unwrap_or(f64::NAN),
        loss: steps.loss,
        by_rank: ranks,
        model: case.model,
    }))
}

/// Returns `options` with a timeline file named after the case.
fn named(options: &BenchOptions, case: &ScalingCase) -> BenchOptions {
    let ranks = case.ranks();
    let name = match case.scaling {
        Scaling::Alone => format!("alone-{ranks}.json"),
        scaling => format!("{}-{}-{ranks}.json", scaling.name(), case.config.parallel.reduction.name()),
    };
    BenchOptions { trace: options.trace.as_ref().map(|directory| directory.join(name)), ..options.clone() }
}

/// Returns the only case with the number of ranks of this process's job.
fn only(startup: &Startup, cases: Vec<ScalingCase>) -> Result<ScalingCase> {
    let fits = |case: &ScalingCase| startup.check_ranks(&case.all_worlds(), None);
    let mut refused = None;
    let mut fitting: Vec<ScalingCase> = Vec::new();
    for case in cases {
        match fits(&case) {
            Ok(()) => fitting.push(case),
            Err(error) => refused = Some(error.into()),
        }
    }
    match (fitting.len(), fitting.pop()) {
        (1, Some(case)) => Ok(case),
        (0, _) => {
            let text = "no number of --ranks equals the job's number of processes";
            Err(refused.unwrap_or_else(|| BenchError::Refused(text.to_owned())))
        }
        (several, _) => Err(BenchError::Refused(format!(
            "under a launcher a job measures one run, and {several} have its number of ranks: name --strong \
             or --weak, and \
             one --reduction"
        ))),
    }
}

fn prepare(startup: &Startup, case: ScalingCase, options: &BenchOptions) -> Result<(ScalingCase, Setup)> {
    if options.device == DeviceChoice::Meta {
        let text = "--device meta: nothing is computed there, so no times can be measured".to_owned();
        return Err(BenchError::Refused(text));
    }
    // All ranks must run at once; otherwise one GPU could do the work of all.
    let mut all = case.all_worlds();
    let ChosenPlacement { placement, .. } =
        ChosenPlacement::find(options.device, &mut all, startup, Some(case.ranks()))?;
    let setup = recompute::settle_soon(plan::prepare(case.config.clone(), placement)?)?;
    Ok((case, cycled(setup).0))
}

/// Measurements of one rank.
struct Measured {
    steps: TimedSteps,
    parameters: usize,
    /// Measurements of all ranks; only on rank 0.
    ranks: Option<Vec<RankFigures>>,
}

/// Runs this process's rank or ranks to the end. Returns the measurements of rank 0, or of this process's
/// rank.
fn launch(startup: Startup, setup: &Setup, case: &ScalingCase, options: &BenchOptions) -> Result<Measured> {
    let ranks = case.ranks();
    let seconds = setup.config.parallel.timeout_seconds;
    let alone = case.scaling == Scaling::Alone || case.worlds > 1;
    let in_job = startup.run_in_job(seconds, |communicator| measure(setup, alone, communicator, options))?;
    if let Some(measured) = in_job {
        return Ok(measured);
    }
    if ranks == 1 {
        return measure(setup, alone, Communicator::solo(), options);
    }
    let waits = threads::Options { timeout: Duration::from_secs(seconds), ..threads::Options::default() };
    let setup = setup.clone();
    let options = options.clone();
    let ran = threads::run(ranks, waits, move |communicator| measure(&setup, alone, communicator, &options));
    let failed = |error: threads::RunError<BenchError>| BenchError::Rank {
        rank: error.rank,
        reason: failure::one_line(&error.cause.to_string()),
    };
    let nobody = || BenchError::Refused("a run has at least one rank".to_owned());
    ran.map_err(failed)?.into_iter().next().ok_or_else(nobody)
}

/// Measures one rank of `communicator`'s world. If `alone`, the rank has its own world beside the others'.
fn measure(
    setup: &Setup,
    alone: bool,
    communicator: Communicator,
    options: &BenchOptions,
) -> Result<Measured> {
    run::prepare_kernels(setup)?;
    let (mut worker, mut beside) = if alone {
        let placement = setup.placement.alone(communicator.rank());
        let own = Setup { placement, ..setup.clone() };
        (Worker::new(&own, Communicator::solo())?, Some(communicator))
    } else {
        (Worker::new(setup, communicator)?, None)
    };
    let steps = timed_steps(&mut worker, &mut beside, options)?;
    let own = worker.statistics()?;
    let ranks = figures(control(&mut worker, &mut beside), own, median(&steps.seconds))?;
    if let Some(file) = &options.trace {
        timeline::write(&mut worker, &mut beside, steps.next, file)?;
    }
    Ok(Measured { steps, parameters: worker.parameters(), ranks })
}

/// Gathers the measurements of all ranks on rank 0, from each rank's statistics and median step.
fn figures(
    control: &mut dyn ControlChannel,
    mut own: RankStatistics,
    seconds: f64,
) -> Result<Option<Vec<RankFigures>>> {
    own.rank = control.rank();
    let statistics = telemetry::gather(control, &own)?;
    let clocks = control.gather(0, &seconds.to_le_bytes())?;
    let (Some(statistics), Some(clocks)) = (statistics, clocks) else { return Ok(None) };
    let seconds =
        |clock: &Vec<u8>| <[u8; 8]>::try_from(clock.as_slice()).map_or(f64::NAN, f64::from_le_bytes);
    let all = statistics.iter().zip(&clocks);
    Ok(Some(
        all.map(|(statistics, clock)| RankFigures::from_statistics(statistics, seconds(clock))).collect(),
    ))
}
