//! Options of a run that are not configuration.

use std::path::PathBuf;

use telemetry::log::Log;
use worker::{DeviceChoice, ModelHook, StepHook, TensorHook};

use crate::interrupt::Interrupt;
use crate::sampler::Sampler;

/// Options of a run that are not configuration.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The device to train on.
    pub device: DeviceChoice,
    /// Number of ranks as threads; must equal the configured number, which is the default.
    pub ranks: Option<usize>,
    /// The run directory; by default a new one under `runs`.
    pub run_dir: Option<PathBuf>,
    /// Continue from the newest checkpoint in `run_dir`, or start from the beginning if there is none.
    pub resume: bool,
    /// Start from the weights of this checkpoint, or of the newest checkpoint in this run directory.
    pub from: Option<PathBuf>,
    /// The step of the checkpoint to read, instead of the newest: of `from` if set, otherwise of the resumed
    /// run.
    pub step: Option<u64>,
    /// Prefix of a new run directory's name.
    pub name: String,
    /// Requests an early end of the run when raised.
    pub interrupt: Interrupt,
    /// The process's log, which adds files in the run directory.
    pub log: Option<Log>,
    /// Print no progress on the terminal.
    pub quiet: bool,
    /// Generates the sample text of the report; `None`: no sample.
    pub sampler: Option<Sampler>,
    /// User code that wraps the model.
    pub model_hook: Option<ModelHook>,
    /// User code that sees every tensor of a step.
    pub tensor_hook: Option<TensorHook>,
    /// User code that sees every step: before and after the passes, the update, every module, and every
    /// gradient.
    pub step_hook: Option<StepHook>,
    /// Skip planning, and with it the check that the run fits in memory.
    pub no_plan: bool,
}

impl RunOptions {
    /// Returns the step of the checkpoint to resume from; `None` for the newest.
    pub(crate) fn step_to_resume(&self) -> Option<u64> {
        self.step.filter(|_| self.from.is_none())
    }

    /// Returns the options that must be equal on all ranks of a job, formatted as on the command line.
    pub(crate) fn shared(&self) -> String {
        let RunOptions { resume, no_plan, from, .. } = self;
        let named = [(*resume, "--resume"), (*no_plan, "--no-plan"), (from.is_some(), "--from")].into_iter();
        let named = named.filter(|(named, _)| *named);
        let named: Vec<&str> = named.map(|(_, flag)| flag).collect();
        if named.is_empty() { "none".to_owned() } else { named.join(" ") }
    }
}
