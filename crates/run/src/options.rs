//! How to run, apart from what the configuration says.

use std::path::PathBuf;

use telemetry::log::Log;
use worker::{DeviceChoice, ModelHook};

use crate::interrupt::Interrupt;

/// How to run, apart from what the configuration says.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// What to compute on.
    pub device: DeviceChoice,
    /// Ranks as threads; must be what the configuration has, which is also the default.
    pub ranks: Option<usize>,
    /// Where the run's files go; a new directory under `runs` if not given.
    pub run_dir: Option<PathBuf>,
    /// Go on from the newest checkpoint in `run_dir`, or from the beginning where there is none.
    pub resume: bool,
    /// What a new run directory's name begins with.
    pub name: String,
    /// Raised to end the run early.
    pub interrupt: Interrupt,
    /// The process's log, which gets files in the run directory.
    pub log: Option<Log>,
    /// No progress on the terminal.
    pub quiet: bool,
    /// Code of one's own around the model.
    pub model_hook: Option<ModelHook>,
    /// Start without a plan, and so without knowing that the run fits.
    pub no_plan: bool,
}
