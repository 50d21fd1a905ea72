//! Launches a run: from a validated configuration to running ranks and one report.

mod agreement;
mod announcement;
mod plans;
mod preparation;
mod ranks;

use config::RunConfig;
use plan::RankForm;

use crate::error::{Result, RunError};
use crate::history::Repetition;
use crate::options::RunOptions;
use crate::rank::Outcome;
use crate::repetition;
use crate::sessions;
use crate::startup::Startup;
use crate::stop_signal::StopSignal;
use crate::train_report::{TrainReport, report};
use agreement::{Agreed, Launch};

/// Trains in this process. Errors with exit status 2 occur before anything is allocated or written; a failed
/// rank ends the run. On GPUs, call it for one run at a time, because kernels of two concurrent runs can
/// block each other.
pub fn train(config: RunConfig, options: RunOptions) -> Result<TrainReport> {
    train_as(Startup::alone(), config, options)?.ok_or(RunError::Reported { status: 0 })
}

/// Trains in this process, which may be a rank of a job. Returns the report on rank 0, and `None` on the
/// others.
///
/// # Errors
/// As for [`train`]. Only one rank of a job returns the error that is to be printed.
pub fn train_as(
    startup: Startup,
    mut config: RunConfig,
    mut options: RunOptions,
) -> Result<Option<TrainReport>> {
    if startup.is_in_job() && config.train.halves_micro_batches() {
        let origin = config.origins.find("train.on_out_of_memory");
        let text =
            "train.on_out_of_memory = \"halve_micro_batch\" is for ranks of one process, as with --ranks";
        return Err(RunError::Refused(format!("{origin}: {text}")));
    }
    let is_in_job = startup.is_in_job();
    let mut startup = Some(startup);
    loop {
        let trained = train_once(startup.take().unwrap_or_else(Startup::alone), config.clone(), &options);
        let run_dir = match trained {
            Err(RunError::Repeatable { run_dir, reason }) => {
                config = repetition::halved(&config, &reason)?;
                run_dir
            }
            // A job has ended, and its launcher starts it again.
            Err(RunError::Rewound { run_dir, .. }) if !is_in_job => run_dir,
            trained => return trained,
        };
        options = RunOptions { resume: true, run_dir: Some(run_dir), step: None, ..options };
    }
}

/// Trains until the run ends, or until a step must be repeated with other settings
/// ([`RunError::Repeatable`]).
fn train_once(mut startup: Startup, config: RunConfig, options: &RunOptions) -> Result<Option<TrainReport>> {
    if let Some(log) = options.log.as_ref().filter(|_| startup.is_in_job()) {
        log.set_rank(startup.rank());
    }
    let launch = match agreement::reach(&mut startup, config, options)? {
        Agreed::Train(launch) => *launch,
        Agreed::Complete(report) => {
            startup.finish()?;
            return Ok(report.map(|report| *report));
        }
    };
    let is_first = startup.rank() == 0;
    if is_first {
        announcement::announce(&launch, options);
    }
    if let Some(log) = &options.log {
        log.set_directory(&launch.directory.logs())?;
    }
    // mpirun would end rank 0, which prints the report, when another rank ends with a status of its own.
    let has_status = startup.rank_form() != RankForm::Processes { mpi: true };
    let reported = ranks::run(startup, &launch, options, |outcomes| conclude(&launch, outcomes, is_first));
    if let Some(log) = &options.log {
        log.flush();
    }
    if let Err(error) = reported.as_ref()
        && is_first
    {
        sessions::fail(launch.directory.path(), error);
    }
    match reported? {
        (None, stopped_by) if has_status && stopped_by.status() > 0 => {
            Err(RunError::Reported { status: stopped_by.status() })
        }
        (report, _) => Ok(report),
    }
}

/// Returns the report of a run on rank 0, and the signal that stopped it.
///
/// # Errors
/// A step must be repeated.
fn conclude(
    launch: &Launch,
    outcomes: Vec<Outcome>,
    is_first: bool,
) -> Result<(Option<TrainReport>, StopSignal)> {
    let Launch { setup, directory, plans } = launch;
    let stopped_by = outcomes.first().map(|outcome| outcome.history.stopped_by).unwrap_or_default();
    if let Some(repetition) = outcomes.iter().find_map(|outcome| outcome.history.repeats.clone()) {
        let run_dir = directory.path().to_owned();
        return Err(match repetition {
            Repetition::Halved(reason) => RunError::Repeatable { run_dir, reason },
            Repetition::Rewound(spike) => RunError::Rewound { run_dir, spike },
        });
    }
    let report = is_first.then(|| report(setup, outcomes, directory.clone(), plans)).transpose()?;
    Ok((report, stopped_by))
}
