//! Rank 0's reports during training: progress, metrics and checkpoints.

use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use checkpoint::CheckpointError;
use config::RunConfig;
use data::TokenSource;
use plan::StepWork;
use telemetry::hashes::{self, HashedStep};
use telemetry::metrics::{MetricsWriter, StepMetrics};
use telemetry::progress::StepFigures;
use telemetry::prometheus::Endpoint;
use telemetry::run_files::Summary;
use telemetry::tensorboard::TensorBoardWriter;
use telemetry::{EXPERT_LOADS, ExpertLoads, GROUP_NORMS, LATER_LOSSES, PREDICTED_SECONDS, Progress};
use worker::{PreferenceFigures, Setup, StepMemory, StepScalars, Validation, Worker, build};

use crate::accuracy::{percentages, rewards};
use crate::endpoint;
use crate::error::Result;
use crate::history::{Repetition, StepReport};
use crate::options::RunOptions;
use crate::prediction::{self, Comparison};
use crate::run_directory::METRICS;
use crate::save::Saver;
use crate::session::Observer;
use crate::sessions::Sessions;
use crate::spike_file::SpikeFile;
use crate::summary::{self, AVERAGE, VALIDATION_WEIGHTS};
use crate::utc::rfc3339;

/// The files that rank 0 writes during training. No step waits for them.
#[derive(Debug)]
pub(crate) struct RunFiles {
    metrics: MetricsWriter,
    /// Writes tensor hashes of steps, if configured.
    hashes: Option<MetricsWriter>,
    tensorboard: Option<TensorBoardWriter>,
    /// Serves metrics to Prometheus.
    endpoint: Option<Endpoint>,
    /// Rank 0's saver, until training begins.
    saver: Option<Saver>,
    sessions: Sessions,
    spikes: SpikeFile,
    /// FLOPs and tokens of a step, if the device's peak rate is known.
    work: Option<StepWork>,
    /// The comparison with the predicted step, if there is one.
    comparison: Option<Comparison>,
}

impl RunFiles {
    /// Opens the files. In a resumed run, lines of steps that will be repeated are removed.
    ///
    /// `loaded`: time taken to read the state. `predicts`: whether step times are predicted.
    ///
    /// # Errors
    /// A file or the data cannot be read or written.
    pub(crate) fn open(
        setup: &Setup,
        run_dir: &Path,
        loaded: Option<Duration>,
        predicts: bool,
    ) -> Result<Self> {
        let sessions = Sessions::begin(run_dir, setup, loaded)?;
        let spikes = SpikeFile::open(run_dir, setup.first_step())?;
        let metrics = MetricsWriter::resume(&run_dir.join(METRICS), setup.first_step())?;
        let hashed = (setup.config.telemetry.hashes > 0).then(|| run_dir.join(hashes::FILE));
        let hashes = hashed.map(|path| MetricsWriter::resume(&path, setup.first_step())).transpose()?;
        let tensorboard = setup
            .config
            .telemetry
            .tensorboard
            .then(|| TensorBoardWriter::resume(run_dir, setup.first_step(), setup.config.world_size()));
        let endpoint = endpoint::open(&setup.config, run_dir)?;
        let saver = Saver::new(setup, run_dir, metrics.syncer())?;
        let work = StepWork::from_setup(setup).unwrap_or_else(|error| {
            tracing::warn!("MFU is not reported: {error}");
            None
        });
        let tensorboard = tensorboard.transpose()?;
        let prediction = if predicts { prediction::predict(setup, run_dir) } else { None };
        let comparison = prediction.map(Comparison::new);
        Ok(RunFiles { metrics, hashes, tensorboard, endpoint, saver, sessions, spikes, work, comparison })
    }

    /// Takes rank 0's saver; `None` if already taken.
    pub(crate) fn take_saver(&mut self) -> Option<Saver> {
        self.saver.take()
    }

    /// Finishes the files before steps are repeated, and waits for the checkpoint that `saver` writes.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn leave(self, repetition: &Repetition, saver: Option<Saver>) -> Result<()> {
        let RunFiles { metrics, hashes, tensorboard, mut sessions, mut spikes, .. } = self;
        spikes.finish()?;
        sessions.leave(repetition)?;
        if let Some(mut saver) = saver {
            saver.finish()?;
        }
        finish(metrics, hashes, tensorboard)
    }

    /// Waits for the last checkpoint, which `saver` writes, and then writes the summary, or the text
    /// `earlier` instead. Returns the summary, and the error of that checkpoint.
    pub(crate) fn conclude(
        self,
        summary: Summary,
        earlier: Option<&[u8]>,
        run_dir: &Path,
        saver: Option<Saver>,
    ) -> Result<(Summary, Option<CheckpointError>)> {
        let RunFiles { metrics, hashes, tensorboard, mut sessions, mut spikes, .. } = self;
        spikes.finish()?;
        let longest_stall = saver.as_ref().and_then(Saver::longest_stall);
        // A run with a summary and no checkpoint has ended for good.
        let unsaved = saver.and_then(|mut saver| saver.finish().err());
        sessions.end(&summary, longest_stall)?;
        match earlier {
            Some(text) => summary::write_again(text, run_dir)?,
            None => summary::write(&summary, run_dir)?,
        }
        finish(metrics, hashes, tensorboard)?;
        Ok((summary, unsaved))
    }
}

/// Waits until the metrics of all steps are written.
///
/// # Errors
/// A file cannot be written.
fn finish(
    metrics: MetricsWriter,
    hashes: Option<MetricsWriter>,
    tensorboard: Option<TensorBoardWriter>,
) -> Result<()> {
    metrics.finish()?;
    hashes.map_or(Ok(()), MetricsWriter::finish)?;
    Ok(tensorboard.map_or(Ok(()), TensorBoardWriter::finish)?)
}

/// Rank 0's observer of steps: prints progress, and writes a line of `metrics.jsonl` for every step.
pub(crate) struct Reporter {
    progress: Option<Progress>,
    files: RunFiles,
    saver: Option<Saver>,
    tokens: f64,
    /// Mean bytes per training token, if tokens consist of bytes. Set when first needed.
    bytes_per_token: OnceCell<Option<f64>>,
    /// Whether slow steps have been reported.
    has_warned: bool,
}

impl Reporter {
    pub(crate) fn new(setup: &Setup, options: &RunOptions, files: RunFiles, saver: Option<Saver>) -> Self {
        let config: &RunConfig = &setup.config;
        let progress = || Progress::new(0, config.train.steps, config.telemetry.every);
        let unit = config.model.examples().rate();
        let tokens = build::tokens_per_step(config, &setup.dataset) as f64;
        Reporter {
            progress: (!options.quiet).then(|| progress().in_units(unit)),
            files,
            saver,
            tokens,
            bytes_per_token: OnceCell::new(),
            has_warned: false,
        }
    }

    /// Returns the mean bytes per training token; `None` if the data has none or cannot be read. Unreadable
    /// data raises its error in the step that needs it.
    fn bytes_per_token(&self, tokens: Option<&Arc<TokenSource>>) -> Option<f64> {
        let read = || tokens.and_then(|tokens| tokens.training_bytes_per_token().ok().flatten());
        *self.bytes_per_token.get_or_init(read)
    }

    /// Compares a step with the prediction, and warns once if steps are slow. Returns the predicted seconds,
    /// if the step was timed.
    fn predicted(&mut self, seconds: Option<f64>, report: &StepReport) -> Option<f64> {
        let comparison = self.files.comparison.as_mut()?;
        let compared = comparison.add(seconds, &report.ranks);
        if let (Poll::Ready(Some(slowdown)), false) = (compared, self.has_warned) {
            tracing::warn!(step = report.step + 1, "{slowdown}");
            self.has_warned = true;
        }
        seconds.and(Some(comparison.prediction.step_seconds))
    }

    /// Ends the progress display. Returns the files and the saver.
    pub(crate) fn into_files(self) -> (RunFiles, Option<Saver>) {
        if let Some(progress) = self.progress {
            progress.finish();
        }
        (self.files, self.saver)
    }
}

/// Converts a loss in nats per token to nats per byte; `None` if tokens are single bytes or their size is
/// unknown.
fn loss_per_byte(loss: f64, bytes: Option<f64>) -> Option<f64> {
    bytes.filter(|bytes| *bytes != 1.0).map(|bytes| loss / bytes)
}

/// Returns the bytes allocated after a step and their peak during it, each the maximum over ranks. Without
/// records of all ranks, both are rank 0's.
fn most_memory(report: &StepReport) -> [u64; 2] {
    let StepMemory { now, step_peak, .. } = report.memory;
    let ranks = || report.ranks.iter();
    [
        ranks().map(|rank| rank.allocated_bytes).fold(now.allocated, u64::max),
        ranks().map(|rank| rank.step_peak_allocated_bytes).fold(step_peak.allocated, u64::max),
    ]
}

/// Returns the preference figures as (name, value) pairs, each name with `prefix`.
fn named(prefix: &str, figures: Option<PreferenceFigures>) -> Vec<(String, serde_json::Value)> {
    let named = figures.into_iter().flat_map(|figures| figures.named());
    named.map(|(name, figure)| (format!("{prefix}{name}"), figure.into())).collect()
}

/// Logs the results of a validation after step `step`, counted from 1, and returns them as (name, value)
/// pairs.
fn validated(worker: &Worker, step: u64, validation: Validation) -> Result<Vec<(String, serde_json::Value)>> {
    let Validation { loss, accuracy, preference } = validation;
    let is_computed = !worker.device().is_meta();
    let is_average = worker.setup().config.train.validate_ema;
    let tokens = worker.setup().dataset.tokens.as_ref().filter(|_| is_computed);
    let bytes = tokens.map(|tokens| tokens.bytes_per_token()).transpose()?.flatten();
    let per_byte = loss_per_byte(loss, bytes);
    if is_computed {
        let in_bytes = per_byte.map_or(String::new(), |loss| format!(" a token, {loss:.4} a byte"));
        let accuracies = accuracy.map_or(String::new(), |accuracy| {
            format!(", {}", percentages([accuracy.top_1(), accuracy.top_5()]))
        });
        let rewards = preference.map_or(String::new(), |figures| rewards(&figures));
        let averaged = if is_average { " of the averaged weights" } else { "" };
        tracing::info!(step, "validation loss{averaged} {loss:.4}{in_bytes}{accuracies}{rewards}");
    }
    let mut results = named("validation_", preference);
    results.push(("validation_loss".to_owned(), loss.into()));
    results.extend(is_average.then(|| (VALIDATION_WEIGHTS.to_owned(), AVERAGE.into())));
    results.extend(per_byte.map(|loss| ("validation_loss_per_byte".to_owned(), loss.into())));
    if let Some(accuracy) = accuracy {
        results.push(("validation_top_1".to_owned(), accuracy.top_1().into()));
        results.push(("validation_top_5".to_owned(), accuracy.top_5().into()));
    }
    Ok(results)
}

impl Observer for Reporter {
    fn step(&mut self, worker: &Worker, report: &StepReport) -> Result<()> {
        let StepScalars { loss, gradient_norm, loss_scale, preference } = report.scalars;
        let tokens_per_second = report.duration.map(|duration| self.tokens / duration.as_secs_f64());
        let step = report.step + 1;
        if report.scalars.is_lost() && !worker.device().is_meta() {
            tracing::warn!(step, "the loss is {loss} and the gradient norm {gradient_norm}");
        } else if let Some(scale) = loss_scale.filter(|_| report.scalars.is_skipped()) {
            tracing::debug!(step, "skipped: the gradient norm is {gradient_norm} at loss scale {scale}");
        }
        if let Some(spike) = &report.spike {
            tracing::warn!(step, "{} (train.on_spike = \"{}\")", spike.in_words(), spike.action);
            self.files.spikes.add(spike)?;
        }
        let tokens = worker.setup().dataset.tokens.as_ref().filter(|_| !worker.device().is_meta());
        let training_per_byte = loss_per_byte(loss.into(), self.bytes_per_token(tokens));
        let seconds = report.duration.map(|duration| duration.as_secs_f64());
        let mfu = self.files.work.as_ref().and_then(|work| Some(work.mfu(seconds?)));
        let predicted = self.predicted(seconds, report);
        if let Some(progress) = &mut self.progress {
            // Meta computes no loss, and its speed is that of planning.
            let computes = !worker.device().is_meta();
            progress.step(
                report.step + 1,
                &StepFigures {
                    loss: computes.then_some(loss),
                    loss_per_byte: training_per_byte,
                    later_losses: if computes { report.later_losses.clone() } else { Vec::new() },
                    rewards: preference
                        .filter(|_| computes)
                        .map(|PreferenceFigures { accuracy, margin, .. }| [accuracy, margin]),
                    throughput: tokens_per_second.filter(|_| computes),
                    mfu,
                    predicted: seconds.zip(predicted).map(<[f64; 2]>::from),
                    memory: Some(most_memory(report)),
                    skipped: report.skipped_steps.filter(|_| computes),
                },
            );
        }
        let mut more = serde_json::Map::new();
        more.extend(predicted.map(|seconds| (PREDICTED_SECONDS.to_owned(), seconds.into())));
        more.extend(named("", preference));
        if !report.later_losses.is_empty() {
            more.insert(LATER_LOSSES.to_owned(), report.later_losses.clone().into());
        }
        more.extend(loss_scale.map(|scale| ("loss_scale".to_owned(), scale.into())));
        more.extend(report.skipped_steps.map(|steps| ("skipped_steps".to_owned(), steps.into())));
        more.extend(report.spike.iter().map(|spike| ("spike".to_owned(), spike.action.clone().into())));
        if !report.group_norms.is_empty() {
            let norms = report.group_norms.iter().map(|(name, norm)| (name.clone(), (*norm).into()));
            more.insert(GROUP_NORMS.to_owned(), serde_json::Value::Object(norms.collect()));
        }
        more.extend(training_per_byte.map(|loss| ("loss_per_byte".to_owned(), loss.into())));
        if let Some(validation) = report.validation {
            more.extend(validated(worker, step, validation)?);
        }
        if !report.expert_loads.is_empty() {
            more.insert(EXPERT_LOADS.to_owned(), ExpertLoads::to_json(&report.expert_loads));
        }
        let StepMemory { now, peak, step_peak } = report.memory;
        let metrics = StepMetrics {
            step: report.step + 1,
            time: rfc3339(SystemTime::now()),
            seconds,
            loss,
            learning_rate: report.learning_rate,
            gradient_norm,
            tokens_per_second,
            allocated_bytes: now.allocated,
            reserved_bytes: now.reserved,
            peak_allocated_bytes: peak.allocated,
            peak_reserved_bytes: peak.reserved,
            step_peak_allocated_bytes: step_peak.allocated,
            step_peak_reserved_bytes: step_peak.reserved,
            mfu,
            ranks: report.ranks.clone(),
            more,
        };
        self.files.metrics.write(&metrics)?;
        self.files.sessions.step(step);
        if let Some(endpoint) = &mut self.files.endpoint {
            endpoint.set(&metrics);
        }
        Ok(self.files.tensorboard.as_mut().map_or(Ok(()), |file| file.write(&metrics))?)
    }

    fn hashes(&mut self, hashes: &HashedStep) -> Result<()> {
        Ok(self.files.hashes.as_mut().map_or(Ok(()), |file| file.write(hashes))?)
    }

    fn saver(&self) -> Option<&Saver> {
        self.saver.as_ref()
    }

    fn saver_mut(&mut self) -> Option<&mut Saver> {
        self.saver.as_mut()
    }
}

/// The observer of steps on all ranks but 0, which writes their parts of checkpoints.
pub(crate) struct Silent(pub(crate) Option<Saver>);

impl Observer for Silent {
    fn step(&mut self, _: &Worker, _: &StepReport) -> Result<()> {
        Ok(())
    }

    fn hashes(&mut self, _: &HashedStep) -> Result<()> {
        Ok(())
    }

    fn saver(&self) -> Option<&Saver> {
        self.0.as_ref()
    }

    fn saver_mut(&mut self) -> Option<&mut Saver> {
        self.0.as_mut()
    }
}
