//! `plimsoll launch`.

use std::ffi::OsString;

use clap::ValueEnum;
use plan::{PlanOptions, PlanTarget};
use run::{JobLauncher, RestartedJob};

use crate::arguments::count;
use crate::error::CliError;
use crate::train::{self, TrainArgs};

/// Start a run's ranks under mpirun or srun, or as threads, and restart them after a failure
///
/// If a rank, a host or the launcher fails, the job is stopped and restarted from the newest checkpoint, on
/// the hosts that respond and with the fastest grid that fits: fewer data-parallel ranks and, only if
/// necessary, a higher ZeRO stage and recomputed blocks. The weights equal those of a run that never failed.
/// sessions.json and the report list each restart with its cause and cost. With checkpoint.memory_steps, the
/// job continues from a newer state in the hosts' memory. Silent corruption (train.verify_every) ends the
/// job.
#[derive(clap::Args, Debug)]
pub(crate) struct LaunchArgs {
    /// End the job after N consecutive failures without a new checkpoint.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count::<u64>)]
    restarts: u64,
    /// Use hosts again that respond again, after the next checkpoint.
    #[arg(long)]
    grow: bool,
    /// Program that starts the ranks, on the hosts of its --host or --hostfile option, or of Slurm's
    /// allocation. With threads, the ranks are threads of one process on this host; this needs no launcher,
    /// and ranks may share a GPU (parallel.ranks_per_device).
    #[arg(long, value_name = "PROGRAM", value_enum, default_value_t = With::Mpirun)]
    with: With,
    /// Options of that program (none for threads), the word train, and the arguments of `plimsoll train`,
    /// including --run-dir.
    #[arg(
        value_name = "OPTION… train ARGUMENT",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

/// Ways to start ranks.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum With {
    Mpirun,
    Srun,
    Threads,
}

/// Runs the job to its end.
///
/// # Errors
/// The arguments or the configuration are invalid, or there are too many failures.
pub(crate) fn run(args: &LaunchArgs) -> Result<(), CliError> {
    let Some(command) = args.words.iter().position(|word| word == "train") else {
        let text =
            "launch: no command train: launcher options come first, as in `plimsoll launch -n 4 train …`";
        return Err(CliError::Refused(text.to_owned()));
    };
    let (options, arguments) = args.words.split_at(command);
    let train = crate::train_arguments(arguments)?;
    let Some(run_dir) = train.run_dir.clone() else {
        let text = "launch: --run-dir is missing: a run that starts again needs a directory with a name";
        return Err(CliError::Refused(text.to_owned()));
    };
    let job = RestartedJob {
        launcher: match args.with {
            With::Mpirun => JobLauncher::Mpirun,
            With::Srun => JobLauncher::Srun,
            With::Threads => JobLauncher::Threads,
        },
        launcher_options: options.to_vec(),
        program: std::env::current_exe()
            .map_err(|error| CliError::Refused(format!("launch: this program has no path: {error}")))?,
        arguments: arguments.to_vec(),
        arguments_to_resume: to_resume(arguments, &train),
        run_dir,
        config: train::configuration(&train)?,
        plan: PlanOptions { target: PlanTarget::from_argument(&train.device)?, capacity: None },
        most_failures: args.restarts,
        grows: args.grow,
    };
    match job.run()? {
        0 => Ok(()),
        // The ranks have already printed the error.
        status => Err(CliError::Shown { status }),
    }
}

/// Returns the arguments with which a run resumes from its newest checkpoint.
fn to_resume(arguments: &[OsString], train: &TrainArgs) -> Vec<OsString> {
    let mut resuming = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let name = word.to_string_lossy();
        // Drops the step from which the run first continued; with --from, it belongs to another run.
        match train.from {
            None if name == "--step" => drop(words.next()),
            None if name.starts_with("--step=") => {}
            _ => resuming.push(word.clone()),
        }
    }
    if !train.resume {
        resuming.push("--resume".into());
    }
    resuming
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_resumes_from_the_newest_checkpoint() {
        for (first, later) in [
            (
                &["train", "a.toml", "--run-dir", "r"][..],
                &["train", "a.toml", "--run-dir", "r", "--resume"][..],
            ),
            (&["train", "--run-dir=r", "--resume", "--step", "4"], &["train", "--run-dir=r", "--resume"]),
            (
                &["train", "--resume", "--step=best", "--run-dir", "r"],
                &["train", "--resume", "--run-dir", "r"],
            ),
            (
                &["train", "--run-dir", "r", "--from", "q", "--step", "4"],
                &["train", "--run-dir", "r", "--from", "q", "--step", "4", "--resume"],
            ),
        ] {
            let first: Vec<OsString> = first.iter().map(OsString::from).collect();
            let train = crate::train_arguments(&first).unwrap();
            assert_eq!(to_resume(&first, &train), later, "{first:?}");
        }
    }
}
