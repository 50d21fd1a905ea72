//! A request to end the run early: all ranks finish the current step and write its results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use signal_hook::consts::SIGXFSZ;
use signal_hook::iterator::Signals;
use system::{terminal, threads};

use crate::error::{Result, RunError};
use crate::stop_signal::{STOPPING, StopSignal};

/// A request to stop, set by a signal handler or another thread. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    raised: Arc<AtomicBool>,
    /// Number of the signal that raised the request; 0 if none did.
    signal: Arc<AtomicU8>,
    /// Whether the last step is done and its results are being written.
    is_ending: Arc<AtomicBool>,
    /// Whether the run is still being prepared and has written nothing, so that a signal ends the process.
    is_preparing: Arc<AtomicBool>,
    after: Option<u64>,
}

impl Interrupt {
    /// Returns a request that takes effect after `steps` steps of a session.
    #[must_use]
    pub fn after(steps: u64) -> Self {
        Interrupt { after: Some(steps), ..Interrupt::default() }
    }

    /// Requests a stop after the current step.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// Returns the signal that raised the request.
    pub(crate) fn signal(&self) -> StopSignal {
        StopSignal::from_number(self.signal.load(Ordering::Relaxed))
    }

    /// Returns whether a stop was requested.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Marks the end of preparation: from now on, a signal lets the current step finish.
    pub(crate) fn end_preparation(&self) {
        self.is_preparing.store(false, Ordering::Relaxed);
    }

    /// Marks the end of the last step.
    pub(crate) fn end_steps(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Returns whether a session must stop after `steps` steps.
    pub(crate) fn is_due(&self, steps: u64) -> bool {
        self.is_raised() || self.after.is_some_and(|after| steps >= after)
    }

    /// Raises the request at SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGUSR1, which Slurm's `--signal` and
    /// `mpirun` forward. During preparation, for example while a corpus is tokenized, a signal ends the
    /// process.
    ///
    /// `alone`: whether this process is not a rank of a job; then a second signal ends it. A rank of a job
    /// may receive one signal from several senders. The signal may also come from a launcher that ends the
    /// job because a rank died. So a rank prints nothing until all ranks agree.
    pub(crate) fn on_signals(&self, alone: bool) -> Result<()> {
        self.is_preparing.store(true, Ordering::Relaxed);
        let refused = |error| RunError::Refused(format!("signals cannot be handled: {error}"));
        // A process started with a signal ignored, for example by nohup, keeps ignoring it.
        let ignored = ignored_signals();
        let handled = STOPPING.into_iter().filter(|signal| !ignored.contains(signal));
        let mut signals = Signals::new(handled).map_err(refused)?;
        let interrupt = self.clone();
        let hear = move || {
            for signal in signals.forever() {
                if interrupt.is_preparing.load(Ordering::Relaxed) {
                    if alone {
                        terminal::say("plimsoll: stopped before the first step, while its data was prepared");
                    }
                    // Nothing is kept, as of a run that is stopped before its first step.
                    system::exit::exit(1);
                }
                match (interrupt.is_raised(), alone) {
                    (true, true) => system::exit::exit(128 + signal),
                    (true, false) => continue,
                    (false, _) => {
                        interrupt.signal.store(StopSignal::from_number(signal).number(), Ordering::Relaxed);
                        interrupt.raise();
                    }
                }
                let is_ending = interrupt.is_ending.load(Ordering::Relaxed);
                let what = if is_ending { "writing the results" } else { "stopping after this step" };
                if alone {
                    terminal::say(&format!("plimsoll: {what}; a second signal stops at once"));
                }
            }
        };
        threads::spawn("signals", hear).map(drop).map_err(refused)
    }
}

/// Makes a write beyond the process's file size limit (`ulimit -f`) fail with an error instead of a signal
/// that ends the process.
pub fn heed_limits() -> Result<()> {
    let refused = |error| RunError::Refused(format!("signals cannot be handled: {error}"));
    // If the signal is handled, the write fails; the flag is unused.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop).map_err(refused)
}

/// Returns the signals that this process has ignored since its start; empty if the system does not provide
/// them.
fn ignored_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}
