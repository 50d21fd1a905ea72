//! Starts the ranks of this process and waits for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collective::{Communicator, threads};
use system::terminal;

use super::agreement::Launch;
use crate::error::{Result, RunError};
use crate::failure::{self, Lost};
use crate::options::RunOptions;
use crate::rank::{Outcome, run_rank};
use crate::repetition;
use crate::run_directory::RunDirectory;
use crate::startup::Startup;

/// Runs this process's ranks to the end, each on its own thread if there are several, and passes their
/// results to `conclude`.
pub(super) fn run<T>(
    startup: Startup,
    launch: &Launch,
    options: &RunOptions,
    conclude: impl FnOnce(Vec<Outcome>) -> Result<T>,
) -> Result<T> {
    let Launch { setup, directory, .. } = launch;
    let world_size = setup.config.world_size();
    let timeout_seconds = setup.config.parallel.timeout_seconds;
    let in_job = startup.is_in_job();
    let run_dir = directory.path().to_owned();
    let repeats = repetition::is_from_checkpoint(&setup.config);
    let outcomes = match startup.into_job() {
        Some(job) => {
            job.watch(&directory.logs())?;
            // Results are written before MPI is finalized, because a rank can fail there.
            let body = |communicator| {
                run_rank(setup, communicator, options, directory).and_then(|outcome| conclude(vec![outcome]))
            };
            return job
                .run(timeout_seconds, body)
                .map_err(|lost| lost_rank(directory, world_size, in_job, &lost));
        }
        None if world_size == 1 => {
            let body = || run_rank(setup, Communicator::solo(), options, directory);
            match catch_unwind(AssertUnwindSafe(body)) {
                Ok(Ok(outcome)) => Ok(vec![outcome]),
                Ok(Err(error)) if error.exit_status() != 1 => return Err(error),
                Ok(Err(error)) => Err(Lost::here(0, failure::sentence(&error))),
                Err(payload) => Err(Lost::here(0, failure::panic_text(&*payload))),
            }
        }
        None => {
            let timeout = Duration::from_secs(timeout_seconds);
            let waits = threads::Options { timeout, ..threads::Options::default() };
            let setup = setup.clone();
            let options = options.clone();
            let directory = directory.clone();
            let ran_out = Arc::new(AtomicBool::new(false));
            let noted = Arc::clone(&ran_out);
            let body = move |communicator| {
                let ran = run_rank(&setup, communicator, &options, &directory);
                if ran.as_ref().is_err_and(RunError::is_out_of_memory) {
                    noted.store(true, Ordering::Relaxed);
                }
                ran
            };
            match threads::run(world_size, waits, body) {
                Err(error) if ran_out.load(Ordering::Relaxed) && repeats => {
                    let reason = failure::one_line(&error.to_string());
                    return Err(RunError::Repeatable { run_dir, reason });
                }
                ran => {
                    ran.map_err(|error| Lost::here(error.rank, failure::one_line(&error.cause.to_string())))
                }
            }
        }
    };
    conclude(outcomes.map_err(|lost| lost_rank(directory, world_size, in_job, &lost))?)
}

/// Writes the failure report, unless another rank has written it, and returns the error to raise.
fn lost_rank(directory: &RunDirectory, world_size: usize, in_job: bool, lost: &Lost) -> RunError {
    match failure::report(&directory.logs(), world_size, lost) {
        Some(report) if in_job => {
            // At once: a launcher gives the ranks of a job about a second.
            terminal::say(&format!("plimsoll: {report}"));
            RunError::Reported { status: 1 }
        }
        Some(report) => RunError::Failed(report),
        None => RunError::Reported { status: 1 },
    }
}
