//! `plimsoll plan`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use trainer::config::RunConfig;
use trainer::{DeviceChoice, TrainError, plan_page, plan_run};

use crate::plan_schedule::{self, ScheduleArgs};
use crate::report::write_page;

/// Say what each rank of a run will use, to the byte, without running it
///
/// Runs the real worker of every kind of rank with nothing behind its memory, and prints what each rank will allocate,
/// reserve and peak at, and what lives there at the peak by category. A run of that configuration on such a
/// device uses exactly these bytes.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The configuration; without one, the built-in quickstart.
    config: Option<PathBuf>,
    /// Override a key of the configuration, as in --set parallel.data=8; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// What the run would compute on: cpu, cuda (the GPU at hand, or an H200 where there is none), or auto: the GPU where there
    /// is one.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// One JSON object, with the keys of summary.json.
    #[arg(long)]
    json: bool,
    /// Instead: one HTML page, which needs no network and no other file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "schedule"])]
    html: Option<PathBuf>,
    #[command(flatten)]
    schedule: ScheduleArgs,
}

/// Plans and prints. 0: done; 2: a command line, configuration or data that is wrong, or a run that does not fit.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match plan(arguments) {
        Ok(text) => {
            // Nobody reads: there is nothing else to do.
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn plan(arguments: &Arguments) -> Result<String, TrainError> {
    let config = match &arguments.config {
        Some(path) => RunConfig::load(path, &arguments.set)?,
        None => RunConfig::quickstart(&arguments.set)?,
    };
    if arguments.schedule.schedule {
        return plan_schedule::text(&arguments.schedule, config, DeviceChoice::from_name(&arguments.device)?);
    }
    if let Some(path) = &arguments.html {
        let name = arguments.config.as_ref().and_then(|path| path.file_stem());
        let title = name.map_or("quickstart".into(), |name| name.to_string_lossy());
        let page = plan_page(config, DeviceChoice::from_name(&arguments.device)?, &title)?.to_html();
        write_page(path, &page)?;
        return Ok(path.display().to_string());
    }
    let report = plan_run(config, DeviceChoice::from_name(&arguments.device)?)?;
    Ok(if arguments.json { report.to_json().to_string() } else { report.to_string().trim_end().to_owned() })
}
