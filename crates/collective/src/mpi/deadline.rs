//! Deadlines for calls that block inside MPI: starting and finalizing.

use std::io::Result;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use system::exit::exit;
use system::{terminal, threads};

/// Time after which rank 0 prints what it is waiting for.
const NOTICE: Duration = Duration::from_secs(5);
/// Delay of ranks other than 0 in reporting a missed deadline, so that rank 0 reports first. Rank r adds r
/// times [`AFTER_EACH`].
const AFTER_RANK_ZERO: Duration = Duration::from_millis(700);
const AFTER_EACH: Duration = Duration::from_millis(20);

/// Ends the process unless dropped before the deadline.
#[derive(Debug)]
pub(super) struct Deadline {
    // Dropping the sender ends the thread.
    _over: Sender<()>,
}

impl Deadline {
    /// Starts a deadline of `timeout`. If it passes, rank `rank` prints the sentence `reason` and exits with
    /// status 1, and the launcher ends the other ranks. Before that, rank 0 prints what it is `waiting` for.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn start(
        timeout: Duration,
        rank: usize,
        waiting: &'static str,
        reason: impl FnOnce() -> String + Send + 'static,
    ) -> Result<Self> {
        let (over, is_over) = channel::<()>();
        let passed = move |time: Duration| is_over.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let watch = move || {
            let notice = NOTICE.min(timeout);
            if !passed(notice) {
                return;
            }
            if rank == 0 && notice < timeout {
                terminal::say(&format!("plimsoll: waiting for {waiting}, {} s at most", timeout.as_secs()));
            }
            let turn = if rank == 0 {
                Duration::ZERO
            } else {
                AFTER_RANK_ZERO + AFTER_EACH * u32::try_from(rank).unwrap_or(u32::MAX).min(1000)
            };
            if passed(timeout - notice) && passed(turn) {
                terminal::say(&format!("plimsoll: {}", reason()));
                exit(1);
            }
        };
        threads::spawn("mpi-deadline", watch).map(|_| Deadline { _over: over })
    }
}
