//! Runs disk work on a separate thread while the rank answers other ranks, so that they do not time out.

use collective::ControlChannel;
use system::threads;
use worker::state::answering::wait_together;

use crate::error::{Result, RunError};

/// Runs `work`, which may wait for a disk, on a separate thread, and answers the other ranks until every rank
/// is done. Returns the result of `work`. Every rank must call this, also one without work.
///
/// # Errors
/// The transport fails, or the thread cannot be started.
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
