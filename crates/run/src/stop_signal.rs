//! The signals that stop a run, and the exit status that each gives.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// The signals that ask a run to stop: Ctrl-C, and those that Slurm's `--signal` and `mpirun` forward.
pub(crate) const STOPPING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1];

/// The signal that asked a run to stop; 0 if another part of the program did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StopSignal(u8);

impl StopSignal {
    /// Returns the signal of this number.
    pub(crate) fn of(number: impl TryInto<u8>) -> Self {
        StopSignal(number.try_into().unwrap_or_default())
    }

    /// The number of the signal.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// Returns the exit status of a run that the signal has stopped after a step, with its results written:
    /// as shells have it, 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP. SIGUSR1 only asks for an early
    /// end, as launchers do, and gives 0.
    #[must_use]
    pub fn status(self) -> u8 {
        match i32::from(self.0) {
            SIGINT | SIGTERM | SIGHUP => 128 + self.0,
            _ => 0,
        }
    }
}
