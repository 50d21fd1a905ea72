//! Waiting for a disk while answering the other ranks, which take a silent rank for dead.

use collective::ControlChannel;
use system::threads;
use worker::state::answering::wait_together;

use crate::error::{Result, RunError};

/// Runs `work`, which may wait for a disk, on a separate thread while this rank answers the others, which all
/// call this, with work or without. Returns the result of `work`.
///
/// # Errors
/// Errors of the transport; no thread.
pub(crate) fn while_answering<T: Send + 'static>(
    control: &mut dyn ControlChannel,
    work: Option<impl FnOnce() -> T + Send + 'static>,
) -> Result<Option<T>> {
    let spawned = work.map(|work| threads::spawn("disk", work)).transpose();
    let thread = spawned
        .map_err(|error| RunError::Refused(format!("a thread to write files cannot be started: {error}")))?;
    wait_together(control, &mut || thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished))?;
    // A panic is passed on to the caller.
    Ok(thread.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
}
