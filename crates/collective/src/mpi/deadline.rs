//! A deadline for calls that wait inside MPI: starting and finalizing.

use std::io::Result;
use std::process::exit;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use system::{terminal, threads};

/// Time after which rank 0 says what is waited for.
const NOTICE: Duration = Duration::from_secs(5);
/// Time that other ranks leave rank 0 to report, and each further rank the one before it.
const AFTER_RANK_ZERO: Duration = Duration::from_millis(700);
const AFTER_EACH: Duration = Duration::from_millis(20);

/// A thread that ends the process unless this is dropped in time.
#[derive(Debug)]
pub(super) struct Deadline {
    // The thread ends when this goes.
    _over: Sender<()>,
}

impl Deadline {
    /// Gives what follows `timeout`. After that, rank `rank` prints `reason`, in a sentence, and ends with
    /// status 1, upon which a launcher ends the others. Rank 0 says meanwhile what it is `waiting` for.
    ///
    /// Errors: the system starts no thread.
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
