//! The state of a device's captures.

use std::cell::{Cell, RefCell};

use crate::cuda::graph::NumberedLaunch;
use crate::moment::Moment;
use crate::recent_events::RecentEvents;
use crate::repeat::Held;

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
    /// Launches of the present capture with numbered words.
    pub(crate) numbered: RefCell<Vec<NumberedLaunch>>,
}

impl CaptureState {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    pub(crate) fn add_numbered(&self, launch: NumberedLaunch) {
        self.numbered.borrow_mut().push(launch);
    }
}
