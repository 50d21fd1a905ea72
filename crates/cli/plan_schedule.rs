//! `plimsoll plan --schedule`.

use std::path::PathBuf;

use config::RunConfig;
use plan::{PlanOptions, plan_schedule};
use telemetry::run_files::atomic_write;
use worker::TrainError;

/// What of the schedule is to be shown.
#[derive(clap::Args, Debug)]
pub(crate) struct ScheduleArgs {
    /// Instead: the pipeline's schedule, a row for each rank, and what each stage holds.
    #[arg(long, conflicts_with = "json")]
    pub(crate) schedule: bool,
    /// The same as a picture for a browser.
    #[arg(long, value_name = "FILE", requires = "schedule")]
    svg: Option<PathBuf>,
}

/// The schedule of a configuration as text. Errors: those of a plan; a file that cannot be written.
pub(crate) fn text(
    args: &ScheduleArgs,
    config: RunConfig,
    options: &PlanOptions,
) -> Result<String, TrainError> {
    let planned = plan_schedule(config, options)?;
    if let Some(path) = &args.svg {
        atomic_write(path, planned.svg().as_bytes())?;
    }
    Ok(planned.to_string())
}
