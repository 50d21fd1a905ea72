//! What one rank does from start to end, and the directory that a run leaves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use collective::Communicator;
use telemetry::log::rank_span;
use telemetry::run_files::{Grid, MetricsWriter, StepMetrics, Summary};
use telemetry::{Progress, RankStatistics, Sources, host_name};

use crate::build;
use crate::checkpoint::{self, CheckpointError, Saver};
use crate::config::RunConfig;
use crate::error::{Result, TrainError};
use crate::hash::weights_sha256;
use crate::launch::RunOptions;
use crate::resume;
use crate::run_lock::RunLock;
use crate::sample::sample_of_run;
use crate::session::{self, Course, Observer, StepReport};
use crate::views;
use crate::worker::{Placement, Setup, Worker};

/// Tokens of the sample at the end of a run.
const SAMPLE_TOKENS: usize = 320;

/// The files of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunDirectory(Arc<RunLock>);

impl RunDirectory {
    /// Makes the directory and writes the resolved configuration. Errors: one that holds a run already.
    pub(crate) fn create(config: &RunConfig, chosen: Option<PathBuf>, name: &str) -> Result<Self> {
        let path = chosen.unwrap_or_else(|| PathBuf::from("runs").join(format!("{name}-{}", timestamp())));
        for file in ["summary.json", "metrics.jsonl"] {
            if path.join(file).exists() {
                let text = format!("--run-dir {}: it holds a run already ({file})", path.display());
                return Err(TrainError::Refused(text));
            }
        }
        if let Some((step, _)) = checkpoint::list(&path)?.last() {
            let text =
                format!("--run-dir {}: it holds a run already (a checkpoint of step {step})", path.display());
            return Err(TrainError::Refused(text));
        }
        let unusable = |error: std::io::Error| {
            TrainError::Refused(format!("--run-dir {}: it cannot be made: {error}", path.display()))
        };
        std::fs::create_dir_all(&path).map_err(unusable)?;
        Self::begin(config, RunLock::take(&path)?)
    }

    /// Opens the directory of a run that goes on: what it came to is no longer true, what was half-written goes.
    pub(crate) fn reopen(config: &RunConfig, lock: RunLock) -> Result<Self> {
        let path = lock.path().to_owned();
        checkpoint::Directory::of(&path).remove_temporaries()?;
        let summary = path.join("summary.json");
        if let Err(source) = std::fs::remove_file(&summary)
            && source.kind() != std::io::ErrorKind::NotFound
        {
            return Err(TrainError::File { path: summary, source });
        }
        Self::begin(config, lock)
    }

    fn begin(config: &RunConfig, lock: RunLock) -> Result<Self> {
        telemetry::run_files::atomic_write(&lock.path().join("config.toml"), config.to_toml().as_bytes())?;
        Ok(RunDirectory(Arc::new(lock)))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes `summary.json` from what rank 0 brought back.
    pub(crate) fn write_summary(&self, setup: &Setup, outcome: &Outcome) -> Result<Summary> {
        let config = &setup.config;
        let course = &outcome.course;
        let timed = (course.steps - course.first).saturating_sub(1) * build::tokens_per_step(config);
        let mut more = serde_json::Map::new();
        more.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        more.insert("configuration_sha256".to_owned(), config.fingerprint().into());
        more.insert("interrupted".to_owned(), course.interrupted.into());
        if setup.resumed.is_some() {
            more.insert("resumed_after_step".to_owned(), course.first.into());
        }
        if let Some(loss) = course.validation_loss {
            more.insert("validation_loss".to_owned(), loss.into());
        }
        let summary = Summary {
            device: setup.placement.name().to_owned(),
            world_size: config.world_size(),
            grid: Grid { data: config.parallel.data, pipeline: config.parallel.pipeline },
            steps: course.steps,
            losses: course.losses.clone(),
            weights_sha256: outcome.weights_sha256.clone(),
            tokens_per_second: if course.seconds > 0.0 { timed as f64 / course.seconds } else { 0.0 },
            ranks: outcome.ranks.clone(),
            more,
        };
        summary.write(&self.path().join("summary.json"))?;
        Ok(summary)
    }
}

/// What a rank brings back; all ranks have the same course, and rank 0 the statistics of all and the sample.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) course: Course,
    pub(crate) ranks: Vec<RankStatistics>,
    pub(crate) weights_sha256: String,
    pub(crate) sample: Option<(String, String)>,
    /// Why the last checkpoint could not be written.
    pub(crate) unsaved: Option<CheckpointError>,
}

/// One rank's whole life.
pub(crate) fn run_rank(
    setup: &Setup,
    communicator: Communicator,
    options: &RunOptions,
    directory: &RunDirectory,
) -> Result<Outcome> {
    let rank = communicator.rank();
    let _span = rank_span(rank).entered();
    let mut worker = Worker::new(setup, communicator)?;
    tracing::debug!("{} parameters on {:?}", worker.model().parameters().elements(), worker.device());
    resume::begin(&mut worker, options.resume)?;
    let mut saver = None;
    let course = match rank {
        0 => {
            let mut reporter = Reporter::new(setup, options, directory)?;
            let course = session::run(&mut worker, &options.interrupt, &mut reporter)?;
            saver = reporter.saver.take();
            course
        }
        _ => session::run(&mut worker, &options.interrupt, &mut Silent)?,
    };
    if setup.config.memory.history > 0 && !worker.device().is_meta() {
        views::write(&worker, directory.path())?;
    }
    let own = statistics(&worker);
    let ranks = telemetry::gather(&mut *worker.communicator.control, &own)?.unwrap_or_default();
    let weights_sha256 = agreed_hash(&mut worker)?;
    let parameters = worker.model().parameters();
    let text = setup.dataset.text.as_deref().filter(|_| rank == 0 && !worker.device().is_meta());
    let sample = sample_of_run(&setup.config, text, parameters, SAMPLE_TOKENS)?;
    let unsaved = saver.and_then(|mut saver| saver.finish().err());
    Ok(Outcome { course, ranks, weights_sha256, sample, unsaved })
}

/// The rank's counters now.
fn statistics(worker: &Worker) -> RankStatistics {
    let traffic = worker.communicator.data.traffic();
    worker.device().with_allocator(|allocator| {
        let sources = Sources {
            statistics: allocator.statistics(),
            live: allocator.category_bytes(),
            at_peak: allocator.peak_category_bytes(),
            traffic,
        };
        let device = &worker.device().description().name;
        RankStatistics::take(worker.grid().rank(), &host_name(), device, &sources)
    })
}

/// The hash of the weights, which all ranks must have alike. Errors: the first rank that has others.
fn agreed_hash(worker: &mut Worker) -> Result<String> {
    let own = weights_sha256(worker.model().parameters())?;
    let all = worker.communicator.control.all_gather(own.as_bytes())?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(own),
        Some(rank) => Err(TrainError::Rank {
            rank,
            reason: "its weights are not those of rank 0 after training".to_owned(),
        }),
    }
}

impl Placement {
    /// Whether numbers are computed nowhere.
    pub(crate) fn is_meta(&self) -> bool {
        matches!(self, Placement::Meta(_))
    }

    /// As in `summary.json`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Placement::Cpu => "cpu",
            Placement::Meta(_) => "meta",
        }
    }
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
        let tokens_per_second = self.tokens / report.duration.as_secs_f64();
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

    fn save(&mut self, worker: &Worker, course: &Course) -> Result<()> {
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

    fn save(&mut self, _: &Worker, _: &Course) -> Result<()> {
        Ok(())
    }
}

/// UTC as `20261120-081500`, by the civil-from-days algorithm of H. Hinnant.
fn timestamp() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, seconds) = ((since / 86_400) as i64, since % 86_400);
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hours, minutes) = (seconds / 3600, seconds % 3600 / 60);
    format!("{year:04}{month:02}{day:02}-{hours:02}{minutes:02}{:02}", seconds % 60)
}
