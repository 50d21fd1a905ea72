//! The state of a device's captures.

use std::cell::{Cell, RefCell};

use crate::cuda::graph::NumberedLaunch;
use crate::moment::Moment;
use crate::recent_events::RecentEvents;
use crate::repeat::Held;

#[derive(Debug, Default)]
pub(crate) struct CaptureState {
    pub(crate) is_on: Cell<bool>,
    /// Name of the call that ended the capture; `None` if no call did.
    pub(crate) interrupted: Cell<Option<&'static str>>,
    /// Captured work, in order.
    pub(crate) pieces: RefCell<Vec<Held>>,
    /// Events that repeated calls wait for.
    pub(crate) recent: RecentEvents,
    /// Beginnings of waits whose ends are not recorded yet.
    pub(crate) notes: RefCell<Vec<Moment>>,
    /// Launches of the current capture whose arguments depend on the micro-batch's number.
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
