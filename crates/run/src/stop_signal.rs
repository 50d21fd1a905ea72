//! Signals that stop a run, and their exit statuses.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// The signals that request a stop: Ctrl-C, and the signals that Slurm's `--signal` and `mpirun` forward.
pub(crate) const STOPPING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1];

/// The signal that requested a stop; 0 if another part of the program did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StopSignal(u8);

impl StopSignal {
    /// Returns the signal with this number; 0 for a number out of range.
    pub(crate) fn from_number(number: impl TryInto<u8>) -> Self {
        StopSignal(number.try_into().unwrap_or_default())
    }

    /// Returns the signal's number.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// Returns the exit status of a run that the signal stopped after a step, with its results written. As in
    /// shells: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP. SIGUSR1, with which launchers request an
    /// early end, gives 0.
    #[must_use]
    pub fn status(self) -> u8 {
        match i32::from(self.0) {
            SIGINT | SIGTERM | SIGHUP => 128 + self.0,
            _ => 0,
        }
    }
}
