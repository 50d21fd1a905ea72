//! The results of a run, as files and in words.

use std::fmt;
use std::path::PathBuf;

use telemetry::RankStatistics;
use telemetry::run_files::{Grid, Summary};
use telemetry::step_trace::{Divergence, Outlived};
use telemetry::table::{device_table, memory_table, phase_table};

use crate::error::{Result, RunError};
use crate::rank::Outcome;
use crate::run_directory::RunDirectory;
use plan::Plans;
use worker::{Setup, build};

/// The results of a run.
#[derive(Debug)]
pub struct TrainReport {
    /// The contents of `summary.json`.
    pub summary: Summary,
    /// The run directory.
    pub run_dir: PathBuf,
    /// Mean loss over the held-out data, at the end.
    pub validation_loss: Option<f64>,
    /// Loss of a smoothed bigram model on the same data, in nats per byte.
    pub bigram_entropy: Option<f64>,
    /// Prompt and continuation.
    pub sample: Option<(String, String)>,
    /// The ranks whose four figures are not those of the plan; `None` where there was none, or the run was
    /// ended before it may have come to its peaks.
    pub unplanned: Option<Vec<usize>>,
    /// The first difference of each rank's memory from its plan.
    pub divergences: Vec<Divergence>,
    /// Allocations of a step's graph that outlived the step.
    pub outlived: Vec<Outlived>,
    /// The statistics of every rank.
    pub ranks: Vec<RankStatistics>,
    /// Whether the run was stopped early.
    pub interrupted: bool,
}

pub(crate) fn report(
    setup: &Setup,
    outcomes: Vec<Outcome>,
    directory: RunDirectory,
    plans: &Plans,
) -> Result<TrainReport> {
    let Some(mut first) = outcomes.into_iter().next() else {
        return Err(RunError::Refused("a run has at least one rank".to_owned()));
    };
    let differ =
        |ran: &&RankStatistics| plans.role_of(ran.rank).is_some_and(|role| !plans.roles()[role].agrees(ran));
    let compared = plans.world_size() > 0 && !first.course.interrupted;
    let unplanned = compared.then(|| first.ranks.iter().filter(differ).map(|ran| ran.rank).collect());
    let bigram_entropy = match &setup.dataset.tokens {
        Some(tokens) => tokens.bigram_entropy()?,
        None => None,
    };
    let summary = write_summary(&directory, setup, &first)?;
    if let Some(error) = first.unsaved.take() {
        return Err(RunError::Unsaved(error));
    }
    Ok(TrainReport {
        summary,
        run_dir: directory.path().to_owned(),
        validation_loss: first.course.validation_loss,
        bigram_entropy,
        sample: first.sample,
        unplanned,
        divergences: first.findings.iter().filter_map(|found| found.divergence.clone()).collect(),
        outlived: first.findings.iter().filter_map(|found| found.outlived.clone()).collect(),
        ranks: first.ranks,
        interrupted: first.course.interrupted,
    })
}

impl fmt::Display for TrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", memory_table(&self.ranks))?;
        write!(f, "{}", device_table(&self.ranks))?;
        write!(f, "{}", phase_table(&self.ranks))?;
        match self.unplanned.as_deref() {
            None => {}
            Some([]) => writeln!(f, "Every rank used what was planned, to the byte.")?,
            Some(ranks) => writeln!(f, "Not as planned: ranks {ranks:?}.")?,
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
        if let Some(loss) = self.validation_loss {
            write!(f, "Validation loss {loss:.4} nats")?;
            match self.bigram_entropy {
                Some(entropy) => {
                    writeln!(f, " a byte; a smoothed bigram model has {entropy:.4} on the same text")?
                }
                None => writeln!(f)?,
            }
        }
        let (steps, speed) = (self.summary.steps, self.summary.tokens_per_second);
        let ended = if self.interrupted { "stopped after" } else { "did" };
        // Nothing was timed where a checkpoint had all steps done.
        let rate = if speed > 0.0 { format!(" at {speed:.0} tokens/s") } else { String::new() };
        writeln!(f, "{ended} {steps} steps{rate}; weights {}", self.summary.weights_sha256)?;
        write!(f, "Files in {}", self.run_dir.display())
    }
}

/// Writes `summary.json` from what rank 0 brought back.
fn write_summary(directory: &RunDirectory, setup: &Setup, outcome: &Outcome) -> Result<Summary> {
    let config = &setup.config;
    let course = &outcome.course;
    let timed = course.timed_steps * build::tokens_per_step(config);
    let mut more = serde_json::Map::new();
    more.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    let description = setup.placement.description();
    more.insert("device_model".to_owned(), description.model.into());
    more.insert("libraries".to_owned(), description.libraries.into());
    more.insert("configuration_sha256".to_owned(), config.fingerprint().into());
    more.insert("interrupted".to_owned(), course.interrupted.into());
    if setup.resumed().is_some() {
        more.insert("resumed_after_step".to_owned(), course.first.into());
    }
    let findings = &outcome.findings;
    let divergences: Vec<_> = findings.iter().filter_map(|found| found.divergence.as_ref()).collect();
    let outlived: Vec<_> = findings.iter().filter_map(|found| found.outlived.as_ref()).collect();
    more.insert("divergences".to_owned(), serde_json::json!(divergences));
    more.insert("outlived".to_owned(), serde_json::json!(outlived));
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
    summary.write(&directory.path().join("summary.json"))?;
    Ok(summary)
}
