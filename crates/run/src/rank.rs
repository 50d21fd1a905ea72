//! One rank of a run, from start to end.

use std::time::{Duration, Instant};

use collective::Communicator;
use telemetry::log::rank_span;
use telemetry::run_files::{MetricsWriter, StepMetrics};
use telemetry::{Progress, RankStatistics, host_name};

use crate::error::{Result, RunError};
use crate::failure;
use crate::options::RunOptions;
use crate::run_directory::RunDirectory;
use crate::sample::sample_of_run;
use crate::save::Saver;
use crate::session::{self, Course, Observer, StepReport};
use crate::views;
use checkpoint::CheckpointError;
use worker::Placement;
use worker::agreed_hash;
use worker::build;
use worker::status::{State, Status};
use worker::watch::Findings;
use worker::{Setup, Worker};

/// Number of tokens of the sample at the end of a run.
const SAMPLE_TOKENS: usize = 320;

/// Kernels that come from the cache take less.
const QUIET_PREPARATION: Duration = Duration::from_millis(500);

/// The results of a rank. All ranks have the same history; rank 0 also has the statistics of all, and the
/// sample.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) course: Course,
    pub(crate) ranks: Vec<RankStatistics>,
    pub(crate) weights_sha256: String,
    pub(crate) sample: Option<(String, String)>,
    /// Differences of all ranks from their plans, on rank 0.
    pub(crate) findings: Vec<Findings>,
    /// The error of the last checkpoint, if it could not be written.
    pub(crate) unsaved: Option<CheckpointError>,
}

/// Runs one rank from start to end, with a status file.
pub(crate) fn run_rank(
    setup: &Setup,
    mut communicator: Communicator,
    options: &RunOptions,
    directory: &RunDirectory,
) -> Result<Outcome> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let _span = rank_span(rank).entered();
    let (host, model, process) = (host_name(), setup.placement.description().model, std::process::id());
    tracing::info!("rank {rank} of {world_size} on {host}, process {process}, computing on {model}");
    let status = Status::create(&directory.logs(), rank, &setup.blueprint.in_words(rank));
    status.observe(&mut communicator);
    prepare_kernels(setup)?;
    let device = setup.device(rank)?;
    let mut left_plan = None;
    let outcome =
        Worker::on(device.clone(), setup, communicator).map_err(RunError::from).and_then(|mut worker| {
            // The data plane may be another one now.
            worker.report_to(&status);
            let outcome = train_rank(&mut worker, options, directory);
            if let Err(error) = &outcome {
                left_plan = worker.divergence().cloned();
                // Before the connections go, so that no other rank waits for this one.
                worker.control().fail(&failure::sentence(error));
            }
            outcome
        });
    status.end(if outcome.is_ok() { State::Done } else { State::Failed });
    outcome.map_err(|error| match error.is_out_of_memory() {
        false => error,
        true => RunError::OutOfMemory {
            left: failure::memory_of(&device, rank, &directory.logs(), left_plan.as_ref()),
            source: Box::new(error),
        },
    })
}

/// Compiles the kernels that are not in the cache, and says how far that is where it takes a while.
pub fn prepare_kernels(setup: &Setup) -> Result<()> {
    let Placement::Cuda(gpus) = &setup.placement else { return Ok(()) };
    let (began, first) = (Instant::now(), gpus.ordinals.first().copied().unwrap_or(0));
    let progress = |done: usize, all: usize| {
        if began.elapsed() > QUIET_PREPARATION {
            tracing::info!("compiling kernels for this GPU, once: {done} of {all} files done");
        }
    };
    device::cuda::prepare_kernels(first, tensor::ops::FAMILIES, &progress)
        .map_err(|error| RunError::Refused(error.to_string()))
}

fn train_rank(worker: &mut Worker, options: &RunOptions, directory: &RunDirectory) -> Result<Outcome> {
    let setup = worker.setup().clone();
    let (setup, rank) = (&setup, worker.grid().rank());
    tracing::debug!("{} parameters on {:?}", worker.parameters(), worker.device());
    worker.begin()?;
    worker.write_traces_to(directory.path());
    let mut saver = None;
    let course = match rank {
        0 => {
            let mut reporter = Reporter::new(setup, options, directory)?;
            let course = session::run(worker, &options.interrupt, &mut reporter)?;
            saver = reporter.saver.take();
            course
        }
        _ => session::run(worker, &options.interrupt, &mut Silent)?,
    };
    if setup.config.memory.history > 0 && !worker.device().is_meta() {
        views::write(worker, directory.path())?;
    }
    worker.write_traces()?;
    let findings = worker.findings()?;
    let own = worker.statistics()?;
    let ranks = telemetry::gather(worker.control(), &own)?.unwrap_or_default();
    let weights_sha256 = agreed_hash(worker)?;
    let sample = sample_of_run(worker, SAMPLE_TOKENS)?;
    let unsaved = saver.and_then(|mut saver| saver.finish().err());
    Ok(Outcome { course, ranks, weights_sha256, sample, findings, unsaved })
}

/// Rank 0's observer: progress for whoever watches, a line of `metrics.jsonl` for every step.
struct Reporter {
    progress: Option<Progress>,
    metrics: MetricsWriter,
    saver: Option<Saver>,
    tokens: f64,
}

impl Reporter {
    fn new(setup: &Setup, options: &RunOptions, directory: &RunDirectory) -> Result<Self> {
        let config = &setup.config;
        let progress = || Progress::new(0, config.train.steps, config.telemetry.every);
        Ok(Reporter {
            progress: (!options.quiet).then(progress),
            metrics: MetricsWriter::resume(&directory.path().join("metrics.jsonl"), setup.first_step())?,
            saver: Saver::new(setup, directory.path()),
            tokens: build::tokens_per_step(config) as f64,
        })
    }
}

impl Observer for Reporter {
    fn step(&mut self, worker: &Worker, report: &StepReport) -> Result<()> {
        let loss = report.scalars.loss;
        let tokens_per_second = report.duration.map(|duration| self.tokens / duration.as_secs_f64());
        if !loss.is_finite() && !worker.device().is_meta() {
            tracing::warn!(step = report.step + 1, "the loss is {loss}");
        }
        if let Some(progress) = &mut self.progress {
            progress.step(report.step + 1, loss, tokens_per_second);
        }
        let mut more = serde_json::Map::new();
        if let Some(loss) = report.validation_loss {
            tracing::info!(step = report.step + 1, "validation loss {loss:.4}");
            more.insert("validation_loss".to_owned(), loss.into());
        }
        let statistics = worker.device().statistics();
        self.metrics.write(&StepMetrics {
            step: report.step + 1,
            loss,
            learning_rate: report.learning_rate,
            gradient_norm: report.scalars.gradient_norm,
            tokens_per_second,
            allocated_bytes: statistics.allocated(),
            reserved_bytes: statistics.reserved(),
            peak_allocated_bytes: statistics.peak_allocated(),
            peak_reserved_bytes: statistics.peak_reserved(),
            more,
        })?;
        Ok(())
    }

    fn save(&mut self, worker: &mut Worker, course: &Course) -> Result<()> {
        let Some(saver) = &mut self.saver else { return Ok(()) };
        saver.save(worker, course)
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.finish();
        }
    }
}

struct Silent;

impl Observer for Silent {
    fn step(&mut self, _: &Worker, _: &StepReport) -> Result<()> {
        Ok(())
    }

    fn save(&mut self, worker: &mut Worker, _: &Course) -> Result<()> {
        Ok(worker.contribute()?)
    }
}
