//! The results of a run, as data and as text.

use std::fmt;
use std::path::{Path, PathBuf};

use data::TokenSource;
use device::Backend;
use telemetry::run_files::Summary;
use telemetry::step_trace::{Divergence, Outlived};
use telemetry::table::{device_table, memory_table, phase_table};
use telemetry::units::{counted, grouped, ranges};
use telemetry::{Prediction, RankStatistics};

use crate::accuracy::percentages;
use crate::error::{Result, RunError};
use crate::rank::Outcome;
use crate::run_directory::RunDirectory;
use crate::sampler::Sample;
use crate::stop_signal::StopSignal;
use crate::summary::{AVERAGE, VALIDATION_WEIGHTS};
use crate::tuned_model::TunedModel;
use plan::Plans;
use worker::Setup;

/// The results of a run.
#[derive(Debug)]
pub struct TrainReport {
    /// The contents of `summary.json`.
    pub summary: Summary,
    /// The run directory.
    pub run_dir: PathBuf,
    /// Mean loss over the held-out data in the last validation.
    pub validation_loss: Option<f64>,
    /// Steps completed before the last validation; fewer than the run's steps if it was stopped.
    pub validation_step: Option<u64>,
    /// Top-1 and top-5 accuracy on validation images, from 0 to 1.
    pub validation_accuracy: Option<[f64; 2]>,
    /// Mean bytes of text per validation target, if tokens consist of bytes.
    pub bytes_per_token: Option<f64>,
    /// Mean bytes of text per training target, if tokens consist of bytes.
    pub training_bytes_per_token: Option<f64>,
    /// Loss of a smoothed bigram model on the same data, in nats per byte.
    pub bigram_entropy: Option<f64>,
    /// The fine-tuned model, if the run started from a model folder.
    pub tuned: Option<TunedModel>,
    /// Whether the text includes tables of memory and time.
    pub shows_tables: bool,
    /// The sample text, if the run has a sampler and its model generates text.
    pub sample: Option<Sample>,
    /// Ranks whose memory statistics differ from the plan. `None` without a plan, or if the run ended before
    /// it could reach its peaks.
    pub unplanned: Option<Vec<usize>>,
    /// The first difference between each rank's memory and its plan.
    pub divergences: Vec<Divergence>,
    /// Allocations made in a step's graph that were not freed by the end of the step.
    pub outlived: Vec<Outlived>,
    /// The statistics of every rank.
    pub ranks: Vec<RankStatistics>,
    /// Whether the run was stopped early.
    pub interrupted: bool,
    /// The signal that stopped the run.
    pub stopped_by: StopSignal,
    /// Predicted tokens (or samples) per second, if the step time was predicted.
    pub predicted_tokens_per_second: Option<f64>,
    /// Unit of throughput: tokens/s or samples/s.
    pub unit: &'static str,
    /// Unit of losses, with a leading space; empty if they have none.
    pub loss_unit: &'static str,
}

/// Builds the report of a run on rank 0.
///
/// # Errors
/// A loss was not finite, the last checkpoint could not be written, or an early end kept no weights.
pub(crate) fn report(
    setup: &Setup,
    outcomes: Vec<Outcome>,
    directory: RunDirectory,
    plans: &Plans,
) -> Result<TrainReport> {
    let first = outcomes.into_iter().next();
    let Some(Outcome { history, summary: Some(summary), sample, findings, unsaved }) = first else {
        return Err(RunError::Refused("a run has at least one rank".to_owned()));
    };
    if let Some(lost) = history.lost {
        let checkpoint = checkpoint::list(directory.path())?.pop().map(|(_, path)| path);
        return Err(RunError::NonFinite { lost, checkpoint });
    }
    if let Some(spike) = history.spike {
        let checkpoint = checkpoint::list(directory.path())?.pop().map(|(_, path)| path);
        return Err(RunError::Spike { spike: spike.in_words(), checkpoint });
    }
    if let Some(error) = unsaved {
        return Err(RunError::Unsaved(error));
    }
    let keeps = setup.config.checkpoint.is_kept() && history.steps > 0;
    if history.interrupted && !keeps && !setup.placement.is_meta() {
        return Err(RunError::NoCheckpoint { steps: history.steps });
    }
    let differ =
        |ran: &&RankStatistics| plans.role_of(ran.rank).is_some_and(|role| !plans.roles()[role].agrees(ran));
    let compared = plans.world_size() > 0 && !history.interrupted;
    let unplanned = compared.then(|| summary.ranks.iter().filter(differ).map(|ran| ran.rank).collect());
    // The run is complete: a missing comparison is no failure.
    let bigram_entropy = setup.dataset.tokens.as_ref().map(|tokens| tokens.bigram_entropy()).transpose();
    let bigram_entropy = bigram_entropy.unwrap_or_else(|error| {
        tracing::warn!("the bigram model's loss is unknown: {error}");
        None
    });
    let bytes = |per_token: fn(&TokenSource) -> std::result::Result<Option<f64>, data::Error>| {
        let ratio = setup.dataset.tokens.as_ref().map(|tokens| per_token(tokens)).transpose();
        ratio.unwrap_or_else(|error| {
            tracing::warn!("no loss a byte: {error}");
            None
        })
    };
    Ok(TrainReport {
        run_dir: directory.path().to_owned(),
        validation_loss: history.validations.last,
        validation_step: history.validations.step,
        validation_accuracy: history.accuracy.map(|accuracy| [accuracy.top_1(), accuracy.top_5()]),
        bytes_per_token: bytes(TokenSource::bytes_per_token).flatten(),
        training_bytes_per_token: bytes(TokenSource::training_bytes_per_token).flatten(),
        bigram_entropy: bigram_entropy.flatten(),
        tuned: TunedModel::from_run(setup, directory.path()),
        shows_tables: true,
        sample,
        unplanned,
        divergences: findings.iter().filter_map(|finding| finding.divergence.clone()).collect(),
        outlived: findings.iter().filter_map(|finding| finding.outlived.clone()).collect(),
        ranks: summary.ranks.clone(),
        interrupted: history.interrupted,
        stopped_by: history.stopped_by,
        predicted_tokens_per_second: predicted(directory.path()),
        unit: setup.config.model.examples().rate(),
        loss_unit: setup.config.model.examples().loss_unit(),
        summary,
    })
}

/// Returns the predicted throughput of the run in `run_dir`. A missing file is no error, because the run is
/// already complete.
fn predicted(run_dir: &Path) -> Option<f64> {
    Prediction::read(run_dir).ok().flatten().map(|prediction| prediction.tokens_per_second)
}

impl TrainReport {
    /// Builds the report of a run that was already complete, from its summary.
    pub(crate) fn of_record(setup: &Setup, summary: Summary, run_dir: PathBuf) -> Self {
        let share = |key: &str| summary.more.get(key).and_then(serde_json::Value::as_f64);
        let entries = |key: &str| summary.more.get(key).cloned().unwrap_or_default();
        TrainReport {
            tuned: TunedModel::from_run(setup, &run_dir),
            shows_tables: true,
            run_dir,
            validation_loss: share("validation_loss"),
            validation_step: summary.more.get("validation_step").and_then(serde_json::Value::as_u64),
            validation_accuracy: share("validation_top_1")
                .zip(share("validation_top_5"))
                .map(<[f64; 2]>::from),
            bytes_per_token: None,
            training_bytes_per_token: None,
            bigram_entropy: None,
            sample: None,
            unplanned: None,
            divergences: serde_json::from_value(entries("divergences")).unwrap_or_default(),
            outlived: serde_json::from_value(entries("outlived")).unwrap_or_default(),
            ranks: summary.ranks.clone(),
            interrupted: false,
            stopped_by: StopSignal::default(),
            predicted_tokens_per_second: None,
            unit: setup.config.model.examples().rate(),
            loss_unit: setup.config.model.examples().loss_unit(),
            summary,
        }
    }
}

impl fmt::Display for TrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shows_tables {
            write!(f, "{}", memory_table(&self.ranks))?;
            write!(f, "{}", device_table(&self.ranks))?;
            write!(f, "{}", phase_table(&self.ranks))?;
        }
        match self.unplanned.as_deref() {
            None => {}
            Some([]) => writeln!(f, "Every rank used what was planned, to the byte.")?,
            Some(ranks) => writeln!(f, "Not as planned: ranks {}.", ranges(ranks.iter().copied()))?,
        }
        for divergence in &self.divergences {
            writeln!(f, "{divergence}")?;
        }
        for outlived in &self.outlived {
            writeln!(f, "{outlived}")?;
        }
        if let Some((prompt, text)) = &self.sample {
            writeln!(f, "\nA sample (the prompt is before the bar):\n\n{prompt}▌{text}\n")?;
        }
        // Meta counts memory and computes no numbers.
        let computes = self.summary.device != Backend::Meta.name();
        if let Some(loss) = self.validation_loss.filter(|_| computes) {
            let earlier = self.validation_step.filter(|step| *step != self.summary.steps);
            let when = earlier.map_or_else(String::new, |step| format!(" after step {step}:"));
            let averaged =
                self.summary.more.get(VALIDATION_WEIGHTS).is_some_and(|weights| weights == AVERAGE);
            let whose = if averaged { " of the averaged weights" } else { "" };
            write!(f, "Validation loss{whose}{when} {loss:.4}{}", self.loss_unit)?;
            if let Some(accuracy) = self.validation_accuracy {
                write!(f, ", {}", percentages(accuracy))?;
            }
            match (self.bigram_entropy, self.bytes_per_token) {
                (Some(entropy), _) => {
                    writeln!(f, " a byte; a smoothed bigram model has {entropy:.4} on the same text")?
                }
                (None, Some(bytes)) => writeln!(f, " a token, {:.4} a byte", loss / bytes)?,
                (None, None) => writeln!(f)?,
            }
        }
        let skipped = self.summary.more.get("skipped_steps").and_then(serde_json::Value::as_u64);
        if let Some(skipped) = skipped.filter(|_| computes) {
            let which = "for gradients that are not finite at their loss scale";
            writeln!(f, "Skipped the update of {} {which}.", counted(skipped, "step"))?;
        }
        let steps = self.summary.steps;
        let speed = self.summary.tokens_per_second;
        let ended = if self.interrupted { "stopped after" } else { "did" };
        // Nothing was timed if the checkpoint had all steps done.
        let rate = if speed > 0.0 && computes {
            let predicted = self.predicted_tokens_per_second;
            let predicted = predicted.map(|speed| format!(", {} predicted", grouped(speed.round() as u64)));
            format!(" at {} {}{}", grouped(speed.round() as u64), self.unit, predicted.unwrap_or_default())
        } else {
            String::new()
        };
        write!(f, "{ended} {}{rate}", counted(steps, "step"))?;
        if let Some(loss) = self.summary.losses.last().filter(|_| computes) {
            write!(f, "; training loss {loss:.4}")?;
            if let Some(first) = self.summary.losses.first().filter(|_| self.tuned.is_some()) {
                write!(f, " after {first:.4} in the first step")?;
            }
            if let Some(bytes) = self.training_bytes_per_token.filter(|bytes| *bytes != 1.0) {
                write!(f, " a token, {:.4} a byte", f64::from(*loss) / bytes)?;
            }
        }
        if computes {
            write!(f, "; weights {}", self.summary.weights_sha256)?;
        }
        writeln!(f)?;
        if let Some(tuned) = self.tuned.as_ref().filter(|_| computes) {
            write!(f, "{tuned}")?;
        }
        write!(f, "Files in {}", self.run_dir.display())
    }
}
