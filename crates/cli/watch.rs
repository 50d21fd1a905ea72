//! `plimsoll watch`.

use std::path::PathBuf;

use crate::error::CliError;
use crate::output::unwritable;
use ::watch::WatchError;

/// Watch a run: memory, phases and load of every rank, loss, learning rate and warnings
///
/// It reads only the files that the run writes anyway: from another terminal while it trains, and after it
/// has ended. `q` leaves, the arrows scroll. If standard output is no terminal, it prints one frame.
#[derive(clap::Args, Debug)]
pub(crate) struct WatchArgs {
    /// The run's directory.
    run_dir: PathBuf,
    /// Print one frame as plain text.
    #[arg(long)]
    once: bool,
}

/// Shows the run.
///
/// # Errors
/// A directory without a run, or a file that cannot be read; a terminal that fails.
pub(crate) fn run(args: &WatchArgs) -> Result<(), CliError> {
    ::watch::watch(&args.run_dir, args.once).map_err(|error| match error {
        WatchError::Run(error) => error.into(),
        WatchError::Terminal(error) => unwritable(error),
    })
}
