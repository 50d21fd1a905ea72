//! A flag that is raised once and wakes all threads that wait for it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crossbeam::channel::{Receiver, Sender, bounded};

/// A flag that threads can wait for. Dropping the only sender of a channel raises it, which every receiver
/// notices.
#[derive(Debug)]
pub(crate) struct Signal {
    raised: AtomicBool,
    sender: Mutex<Option<Sender<Infallible>>>,
    receiver: Receiver<Infallible>,
}

impl Default for Signal {
    fn default() -> Self {
        let (sender, receiver) = bounded(0);
        Signal { raised: AtomicBool::new(false), sender: Mutex::new(Some(sender)), receiver }
    }
}

impl Signal {
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Returns a receiver that becomes ready when the signal is raised.
    pub(crate) fn receiver(&self) -> &Receiver<Infallible> {
        &self.receiver
    }
}
