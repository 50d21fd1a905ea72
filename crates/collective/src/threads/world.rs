//! What the threads of a world share: who has failed and who has ended.

use std::sync::{Mutex, PoisonError};

use crate::error::Failure;
use crate::threads::signal::Signal;

/// The state of all ranks of a process.
#[derive(Debug)]
pub(crate) struct World {
    failure: Mutex<Option<Failure>>,
    failed: Signal,
    ended: Vec<Signal>,
}

impl World {
    pub(crate) fn new(size: usize) -> Self {
        World {
            failure: Mutex::default(),
            failed: Signal::default(),
            ended: (0..size).map(|_| Signal::default()).collect(),
        }
    }

    /// Records a failure, if it is the first, and wakes everybody.
    pub(crate) fn fail(&self, rank: usize, reason: &str) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| Failure { rank, reason: reason.to_owned() });
        drop(failure);
        self.failed.raise();
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        if !self.failed.is_raised() {
            return None;
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn failed(&self) -> &Signal {
        &self.failed
    }

    /// Raised when the rank's thread makes no more calls.
    pub(crate) fn ended(&self, rank: usize) -> &Signal {
        &self.ended[rank]
    }
}
