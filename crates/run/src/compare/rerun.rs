//! Short reruns of two runs with every step hashed, to find the first operator whose result differs.

use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::Serialize;
use telemetry::hashes::{self, HashComparison};
use telemetry::units::counted;
use worker::{DeviceChoice, TensorHook};

use super::compared::ComparedRun;
use crate::error::{Result, RunError};
use crate::interrupt::Interrupt;
use crate::launch::train;
use crate::options::RunOptions;
use crate::reference;
use crate::run_report::configuration_of;
use crate::spike_file;

/// Configuration overrides of a rerun: everything is hashed, and nothing else is written.
const SETTINGS: [&str; 7] = [
    "telemetry.hashes=1",
    "checkpoint.every=0",
    "checkpoint.minutes=0",
    "checkpoint.keep_best=false",
    "memory.history=0",
    "telemetry.tensorboard=false",
    "telemetry.listen=",
];

/// Options of a rerun.
#[derive(Clone, Debug)]
pub struct RerunOptions {
    /// An existing directory, in which the reruns write to `a` and `b`.
    pub directory: PathBuf,
}

/// The result of two reruns.
#[derive(Clone, Debug, Serialize)]
pub struct Rerun {
    /// Step of the checkpoint from which each run was repeated.
    pub after: [u64; 2],
    /// The last step repeated.
    pub last: u64,
    /// Comparison of the reruns' hashes.
    pub hashes: HashComparison,
}

impl fmt::Display for Rerun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rerun { after: [first, second], last, hashes } = self;
        let from = match first == second {
            true => format!("step {}", first + 1),
            false => format!("steps {} and {}", first + 1, second + 1),
        };
        write!(f, "run again from {from} to {last}: ")?;
        match &hashes.parting {
            Some(parting) => write!(f, "they part in {parting}"),
            None => write!(
                f,
                "{} are equal. What parted the runs does not repeat: a fault of the hardware, or another \
                 program or library at the time",
                counted(hashes.arrays as u64, "hashed array")
            ),
        }
    }
}

/// Trains both runs again to step `last`, each from its newest checkpoint that is not after step `equal`.
///
/// # Errors
/// A rerun fails, or its directory cannot be written.
pub(super) fn run(
    runs: &[ComparedRun; 2],
    (equal, last): (u64, u64),
    options: &RerunOptions,
    hooks: [Option<TensorHook>; 2],
) -> Result<Rerun> {
    let mut after = [0; 2];
    let mut hashed = Vec::new();
    for ((index, run), hook) in runs.iter().enumerate().zip(hooks) {
        let directory = options.directory.join(["a", "b"][index]);
        after[index] = again(run, &directory, (equal, last), hook)?;
        hashed.push(hashes::read(&directory.join(hashes::FILE), true)?);
    }
    Ok(Rerun { after, last, hashes: hashes::compare(&hashed[0], &hashed[1]) })
}

/// Trains `run` again in `directory` to step `last`, from its newest checkpoint that is not after step
/// `equal`. Returns the checkpoint's step.
fn again(
    run: &ComparedRun,
    directory: &Path,
    (equal, last): (u64, u64),
    tensor_hook: Option<TensorHook>,
) -> Result<u64> {
    let file = |source| RunError::File { path: directory.to_owned(), source };
    let checkpoints = checkpoint::list(&run.path)?;
    let nearest = checkpoints.into_iter().rev().find(|(step, _)| *step <= equal);
    let after = nearest.as_ref().map_or(0, |(step, _)| *step);
    if let Some((_, path)) = &nearest {
        let target = directory.join("checkpoints");
        fs::create_dir_all(&target).map_err(file)?;
        let path = std::path::absolute(path).map_err(file)?;
        symlink(&path, target.join(path.file_name().unwrap_or_default())).map_err(file)?;
    }
    fs::create_dir_all(directory).map_err(file)?;
    // They decide the steps that follow.
    for name in [reference::FILE, spike_file::FILE] {
        let path = std::path::absolute(run.path.join(name)).map_err(file)?;
        if path.exists() {
            symlink(&path, directory.join(name)).map_err(file)?;
        }
    }
    let summary = run.summary.as_ref();
    let device = summary.map_or(Ok(DeviceChoice::Auto), |summary| DeviceChoice::from_name(&summary.device));
    let from = summary.and_then(|summary| summary.more.get("weights_from")?.as_str().map(PathBuf::from));
    let options = RunOptions {
        device: device?,
        run_dir: Some(directory.to_owned()),
        // Also from the beginning: the steps whose samples it left out are known.
        resume: true,
        from: from.filter(|_| nearest.is_none()),
        interrupt: Interrupt::after(last - after),
        quiet: true,
        no_plan: true,
        tensor_hook,
        ..RunOptions::default()
    };
    match train(configuration_of(&run.path, &SETTINGS.map(str::to_owned))?, options) {
        // It stops before the run's last step, and keeps hashes only.
        Ok(_) | Err(RunError::NoCheckpoint { .. } | RunError::NonFinite { .. }) => Ok(after),
        Err(error) => Err(error),
    }
}
