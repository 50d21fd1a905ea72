//! `plimsoll watch`.

use std::path::PathBuf;

use crate::error::CliError;
use crate::output::unwritable;
use ::watch::WatchError;

/// Watch a run: memory, phases and load of every rank, loss, learning rate and warnings
///
/// Reads only files that the run writes anyway, so it can run in another terminal during training or after it
/// has ended. Press `q` to leave and the arrow keys to scroll. If standard output is not a terminal, prints
/// one frame.
#[derive(clap::Args, Debug)]
pub(crate) struct WatchArgs {
    /// Run directory.
    run_dir: PathBuf,
    /// Print one frame as plain text.
    #[arg(long)]
    once: bool,
}

/// Runs the command: shows the run.
///
/// # Errors
/// The directory is not a run, a file cannot be read, or the terminal fails.
pub(crate) fn run(args: &WatchArgs) -> Result<(), CliError> {
    ::watch::watch(&args.run_dir, args.once).map_err(|error| match error {
        WatchError::Run(error) => error.into(),
        WatchError::Terminal(error) => unwritable(error),
    })
}
