//! `plimsoll plan --schedule`.

use std::path::PathBuf;

use crate::error::CliError;
use config::RunConfig;
use plan::{PlanOptions, plan_schedule};

use crate::outputs::{Force, Kind};

/// Options of `plimsoll plan` that show the pipeline's schedule.
#[derive(clap::Args, Debug)]
pub(crate) struct ScheduleArgs {
    /// Print the pipeline's schedule instead: a row for each rank, and the layers of each stage.
    #[arg(long, conflicts_with = "json")]
    pub(crate) schedule: bool,
    /// Also write the schedule to FILE as an SVG picture.
    #[arg(long, value_name = "FILE", requires = "schedule")]
    svg: Option<PathBuf>,
}

/// Returns the schedule as text, and writes its picture if requested.
///
/// # Errors
/// Planning fails, or the picture cannot be written.
pub(crate) fn text(
    args: &ScheduleArgs,
    force: Force,
    config: RunConfig,
    options: &PlanOptions,
) -> Result<String, CliError> {
    let picture = |path: &PathBuf| force.output("--svg", path, Kind::Picture);
    let picture = args.svg.as_ref().map(picture).transpose()?;
    let planned = plan_schedule(config, options)?;
    picture.map_or(Ok(()), |picture| picture.write(&planned.svg()))?;
    Ok(planned.to_string())
}
