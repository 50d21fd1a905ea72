//! Continuing from a checkpoint: finding it, comparing it with the run, and restoring every rank.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Result, RunError};
use crate::run_directory::RunLock;
use checkpoint::{CheckpointError, ResumePoint};
use config::RunConfig;
use worker::{Setup, Worker};

/// The checkpoint that `--resume` found in the run directory. Nothing has been changed there yet.
#[derive(Debug)]
pub(crate) struct Found {
    /// `None` for a process that does not write the shared files, and for a directory that does not exist
    /// yet.
    pub(crate) lock: Option<RunLock>,
    /// `None` if the run starts at its beginning.
    pub(crate) point: Option<Arc<ResumePoint>>,
}

impl Found {
    /// Looks for the newest checkpoint of the run in `run_dir`, verifies it and holds it against `config`.
    /// `owns`: whether this process writes the run's shared files.
    ///
    /// Errors: no directory given; one that is in use, or holds a run that ended without a checkpoint; a
    /// checkpoint that is damaged or of another run.
    pub(crate) fn look(config: &RunConfig, run_dir: Option<&Path>, owns: bool) -> Result<Self> {
        let Some(run_dir) = run_dir else {
            return Err(RunError::Refused("--resume: which run to go on with, --run-dir says".to_owned()));
        };
        if !run_dir.exists() {
            return Ok(Found { lock: None, point: None });
        }
        let lock = owns.then(|| RunLock::take(run_dir)).transpose()?;
        let Some(checkpoint) = checkpoint::newest(run_dir)? else {
            if run_dir.join("summary.json").exists() {
                let text =
                    format!("--resume: {} holds a run that ended and no checkpoint", run_dir.display());
                return Err(RunError::Refused(text));
            }
            return Ok(Found { lock, point: None });
        };
        let differences = config::differences(&config.identity(), checkpoint.configuration());
        if !differences.is_empty() {
            let path = checkpoint.path().to_owned();
            return Err(CheckpointError::OtherRun { path, differences }.into());
        }
        let losses = checkpoint.losses()?;
        Ok(Found { lock, point: Some(Arc::new(ResumePoint { checkpoint, losses })) })
    }

    /// Makes `setup` continue from the checkpoint. Errors: other data; a device that computes nothing.
    pub(crate) fn apply(&self, setup: &mut Setup) -> Result<()> {
        let Some(point) = &self.point else { return Ok(()) };
        if setup.placement.is_meta() {
            let text = "--resume: --device meta computes nothing that could go on";
            return Err(RunError::Refused(text.to_owned()));
        }
        if setup.dataset.corpus_sha256()? != point.checkpoint.corpus_sha256() {
            return Err(RunError::Refused(format!(
                "{}: data.paths: it is not the text that {} was trained on",
                setup.config.origins.of("data.paths"),
                point.checkpoint.path().display()
            )));
        }
        setup.resumed = Some(Arc::clone(point));
        Ok(())
    }
}

/// Logs the step that the run continues from.
pub(crate) fn announce(setup: &Setup, run_dir: &Path) {
    match &setup.resumed {
        Some(point) => {
            let (step, path) = (point.checkpoint.step(), point.checkpoint.path().display());
            tracing::info!("going on after step {step}, from {path}");
        }
        None => {
            tracing::info!("there is no checkpoint in {}: starting from the beginning", run_dir.display())
        }
    }
}

/// Restores a worker from the checkpoint that its run continues from, if there is one, after all ranks have
/// agreed on it. Every rank reads the checkpoint itself.
///
/// Errors: ranks that found different checkpoints; one that cannot be read after all.
pub(crate) fn begin(worker: &mut Worker, resume: bool) -> Result<()> {
    if !resume {
        return Ok(());
    }
    let point = worker.setup().resumed.clone();
    let own = point.as_ref().map_or("", |point| point.checkpoint.id()).as_bytes();
    let all = worker.control().all_gather(own)?;
    if let Some(rank) = all.iter().position(|other| *other != all[0]) {
        let reason = "it found another checkpoint than rank 0".to_owned();
        return Err(RunError::Rank { rank, reason });
    }
    match point {
        Some(point) => Ok(worker.restore(&point.checkpoint)?),
        None => Ok(()),
    }
}
