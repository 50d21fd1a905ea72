//! The state of a device's captures.

use std::cell::{Cell, RefCell};

use crate::cuda::graph::NumberedLaunch;
use crate::moment::Moment;
use crate::recent_events::RecentEvents;
use crate::repeat::Held;

/// Bytes that were copied from the host, by their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// The state of a device's captures.
#[derive(Debug, Default)]
pub(crate) struct CaptureState {
    pub(crate) is_on: Cell<bool>,
    /// The call before which the capture was ended.
    pub(crate) interrupted: Cell<Option<&'static str>>,
    /// Captured work, in order.
    pub(crate) pieces: RefCell<Vec<Held>>,
    /// Events for which repeated calls wait.
    pub(crate) recent: RecentEvents,
    /// Beginnings of waits that are being noted.
    pub(crate) notes: RefCell<Vec<Moment>>,
    /// Copies from the host, while they are noted.
    pub(crate) written: RefCell<Option<Vec<Written>>>,
    /// Launches of the present capture with numbered words.
    pub(crate) numbered: RefCell<Vec<NumberedLaunch>>,
}

impl CaptureState {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Adds a captured launch.
    pub(crate) fn add_numbered(&self, launch: NumberedLaunch) {
        self.numbered.borrow_mut().push(launch);
    }

    /// Notes a copy from the host, if copies are noted.
    pub(crate) fn note(&self, address: u64, bytes: usize) {
        if let Some(written) = &mut *self.written.borrow_mut() {
            written.push(Written { address, bytes });
        }
    }
}
