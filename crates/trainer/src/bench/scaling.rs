//! The scaling suite's one measurement: the training step of a configuration on all of its ranks.

use std::time::Duration;

use collective::{Communicator, threads};
use telemetry::RankStatistics;
use telemetry::scaling::{RankFigures, Run, Scaling};

use super::{BenchOptions, median, timed_steps, timeline};
use crate::build;
use crate::config::RunConfig;
use crate::error::{Result, TrainError};
use crate::failure::{self, Lost};
use crate::placement::{DeviceChoice, Placed};
use crate::recompute;
use crate::run;
use crate::startup::Startup;
use crate::worker::{Setup, Worker};

/// A training step to measure on as many ranks as its configuration has.
#[derive(Clone, Debug)]
pub struct ScalingCase {
    /// The model's name in reports.
    pub model: String,
    /// Which series it is of.
    pub scaling: Scaling,
    /// What is run.
    pub config: RunConfig,
}

/// Measures `case`, its ranks as threads of this process. Nothing of it is left afterwards. Errors: those of a run.
pub fn bench_scaling(case: ScalingCase, options: &BenchOptions) -> Result<Run> {
    bench_scaling_as(Startup::alone(), vec![case], options)?.ok_or(TrainError::Said { status: 0 })
}

/// Measures the one of `cases` that has as many ranks as the job of which this process is a rank; for a process alone, the
/// only one. `None` on ranks other than 0.
///
/// Errors: those of a run; no case or several that have the job's ranks.
pub fn bench_scaling_as(
    mut startup: Startup,
    cases: Vec<ScalingCase>,
    options: &BenchOptions,
) -> Result<Option<Run>> {
    let prepared = only(&startup, cases).and_then(|case| prepare(&startup, case, options));
    let (case, setup) = startup.agree(prepared)?;
    let same = startup.check_same(&setup);
    startup.agree(same)?;
    let in_job = startup.is_in_job();
    let measured = launch(startup, &setup, &named(options, &case))?;
    let Some(ranks) = measured.ranks.filter(|ranks| !ranks.is_empty()) else { return Ok(None) };
    let (config, parallel, train) = (&setup.config, &setup.config.parallel, &setup.config.train);
    let description = setup.placement.description();
    let extreme = |pick: fn(f64, f64) -> f64| measured.seconds.iter().copied().reduce(pick);
    Ok(Some(Run {
        parameters: measured.parameters as u64,
        device: setup.placement.name().to_owned(),
        device_model: description.model,
        libraries: description.libraries,
        precision: config.precision.name(),
        scaling: case.scaling,
        ranks: config.world_size(),
        ranks_are: if in_job { "processes" } else { "threads" }.to_owned(),
        reduction: parallel.reduction.name().to_owned(),
        shard_optimizer: parallel.shard_optimizer,
        micro_batch: train.micro_batch,
        micro_batches: train.micro_batches,
        tokens: build::tokens_per_step(config),
        steps: options.steps,
        warm_up: options.warm_up,
        step_seconds: median(&measured.seconds),
        least_seconds: extreme(f64::min).unwrap_or(f64::NAN),
        most_seconds: extreme(f64::max).unwrap_or(f64::NAN),
        loss: measured.loss,
        by_rank: ranks.iter().map(RankFigures::of).collect(),
        model: case.model,
    }))
}

/// `options`, with a file of the case's name for its timeline.
fn named(options: &BenchOptions, case: &ScalingCase) -> BenchOptions {
    let (ranks, reduction) = (case.config.world_size(), case.config.parallel.reduction.name());
    let name = format!("{}-{reduction}-{ranks}.json", case.scaling.name());
    BenchOptions { trace: options.trace.as_ref().map(|directory| directory.join(name)), ..options.clone() }
}

/// The one case for this process's job.
fn only(startup: &Startup, cases: Vec<ScalingCase>) -> Result<ScalingCase> {
    let fits = |case: &ScalingCase| {
        startup.check_ranks(case.config.parallel.data, case.config.parallel.pipeline, None)
    };
    let mut refused = None;
    let mut fitting: Vec<ScalingCase> = Vec::new();
    for case in cases {
        match fits(&case) {
            Ok(()) => fitting.push(case),
            Err(error) => refused = Some(error),
        }
    }
    match (fitting.len(), fitting.pop()) {
        (1, Some(case)) => Ok(case),
        (0, _) => {
            let text = "no number of --ranks is that of this job's processes";
            Err(refused.unwrap_or_else(|| TrainError::Refused(text.to_owned())))
        }
        (several, _) => Err(TrainError::Refused(format!(
            "under a launcher a job measures one run, and {several} have its number of ranks: name --strong or --weak, and \
             one --reduction"
        ))),
    }
}

fn prepare(startup: &Startup, mut case: ScalingCase, options: &BenchOptions) -> Result<(ScalingCase, Setup)> {
    if options.device == DeviceChoice::Meta {
        let text = "--device meta: nothing is computed there, and so nothing takes time".to_owned();
        return Err(TrainError::Refused(text));
    }
    // These many ranks and no others: without that, one GPU would do the work of all.
    let ranks = Some(case.config.world_size());
    let Placed { placement, .. } = Placed::find(options.device, &mut case.config, startup, ranks)?;
    let setup = recompute::settle_soon(Setup::new(case.config.clone(), placement)?)?;
    Ok((case, setup))
}

/// What a rank brings back.
struct Measured {
    seconds: Vec<f64>,
    loss: f32,
    parameters: usize,
    /// Of all ranks, on rank 0.
    ranks: Option<Vec<RankStatistics>>,
}

/// Runs this process's rank or ranks to the end; rank 0's measure, or that of this process's rank.
fn launch(startup: Startup, setup: &Setup, options: &BenchOptions) -> Result<Measured> {
    let (world_size, seconds) = (setup.config.world_size(), setup.config.parallel.timeout_seconds);
    if let Some(job) = startup.into_job() {
        let ran = job.run(seconds, |communicator| measure(setup, communicator, options));
        return ran.map_err(|Lost { rank, reason, .. }| TrainError::Rank { rank, reason });
    }
    if world_size == 1 {
        return measure(setup, Communicator::solo(), options);
    }
    let waits = threads::Options { timeout: Duration::from_secs(seconds), ..threads::Options::default() };
    let (setup, options) = (setup.clone(), options.clone());
    let ran = threads::run(world_size, waits, move |communicator| measure(&setup, communicator, &options));
    let failed = |error: threads::RunError<TrainError>| TrainError::Rank {
        rank: error.rank,
        reason: failure::one_line(&error.cause.to_string()),
    };
    let nobody = || TrainError::Refused("a run has at least one rank".to_owned());
    ran.map_err(failed)?.into_iter().next().ok_or_else(nobody)
}

fn measure(setup: &Setup, communicator: Communicator, options: &BenchOptions) -> Result<Measured> {
    run::prepare_kernels(setup)?;
    let mut worker = Worker::new(setup, communicator)?;
    let (seconds, loss) = timed_steps(&mut worker, options)?;
    let own = run::statistics(&mut worker)?;
    let ranks = telemetry::gather(&mut *worker.communicator.control, &own)?;
    if let Some(file) = &options.trace {
        timeline::write(&mut worker, options.warm_up + options.steps, file)?;
    }
    Ok(Measured { seconds, loss, parameters: worker.parameters(), ranks })
}
