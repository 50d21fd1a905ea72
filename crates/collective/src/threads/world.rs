//! State shared by a world's threads: which ranks have failed and which have ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use device::SharedEvent;

use crate::control::Liveness;
use crate::error::Failure;
use crate::shared_gpu::offers::Offers;
use crate::threads::signal::Signal;

/// Time for which a rank's report of a delay stays valid, generous enough for a busy host.
const FRESH: Duration = Duration::from_secs(2);

/// The state of all ranks of a process.
#[derive(Debug)]
pub(crate) struct World {
    failure: Mutex<Option<Failure>>,
    failed: Signal,
    ended: Vec<Signal>,
    /// Time at which each rank last began a call on its device, in microseconds since `began`; 0 before the
    /// first call.
    signs: Vec<AtomicU64>,
    /// Time at which each rank last reported a delay, in microseconds since `began`; 0 before the first
    /// report.
    delays: Vec<AtomicU64>,
    began: Instant,
    /// Memory that ranks which share a GPU offer each other.
    pub(crate) offers: Arc<Offers<SharedEvent>>,
}

impl World {
    pub(crate) fn new(size: usize) -> Self {
        World {
            failure: Mutex::default(),
            failed: Signal::default(),
            ended: (0..size).map(|_| Signal::default()).collect(),
            signs: (0..size).map(|_| AtomicU64::new(0)).collect(),
            delays: (0..size).map(|_| AtomicU64::new(0)).collect(),
            began: Instant::now(),
            offers: Arc::default(),
        }
    }

    /// Records a failure, if it is the first, and wakes all waiting ranks.
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

    /// Microseconds since the world began, at least 1.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
    }

    pub(crate) fn failed(&self) -> &Signal {
        &self.failed
    }

    /// The signal raised once the rank's thread makes no more calls.
    pub(crate) fn ended(&self, rank: usize) -> &Signal {
        &self.ended[rank]
    }
}

/// A rank's record of live and failed ranks.
pub(crate) struct ThreadLiveness {
    pub(crate) world: Arc<World>,
    pub(crate) rank: usize,
}

impl Liveness for ThreadLiveness {
    fn failure(&self) -> Option<Failure> {
        self.world.failure()
    }

    fn sign(&self) {
        self.world.signs[self.rank].store(self.world.now(), Ordering::Relaxed);
    }

    fn delay(&self) {
        self.world.delays[self.rank].store(self.world.now(), Ordering::Relaxed);
    }

    fn is_delayed(&self) -> bool {
        let now = self.world.now();
        let others = self.world.delays.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        let mut stamps = others.map(|(_, at)| at.load(Ordering::Relaxed)).filter(|at| *at > 0);
        stamps.any(|at| now.saturating_sub(at) < FRESH.as_micros() as u64)
    }

    /// Returns the rank whose last call began earliest; the others began to wait for it later.
    fn silent(&self, among: &[usize]) -> Option<usize> {
        let sign = |rank: &usize| self.world.signs[*rank].load(Ordering::Relaxed);
        let earliest = among.iter().copied().filter(|rank| *rank != self.rank).min_by_key(sign)?;
        (sign(&earliest) < sign(&self.rank)).then_some(earliest)
    }
}
