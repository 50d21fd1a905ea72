//! The newest events of each stream, so that repeated calls can find the event to wait for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::call_log::LoggedEvent;
use crate::event::Event;
use crate::stream::StreamKind;

/// Number of events kept per stream, more than a step records between an event and a wait for it. A wait for
/// an older event waits for a later one.
const KEPT: usize = 4096;

/// The newest events of each stream, recorded once keeping is switched on.
#[derive(Debug, Default)]
pub(crate) struct RecentEvents {
    keeps: Cell<bool>,
    by_stream: [RefCell<VecDeque<Event>>; StreamKind::ALL.len()],
}

impl RecentEvents {
    pub(crate) fn keep(&self) {
        self.keeps.set(true);
    }

    /// Adds `event` as the newest of its stream.
    pub(crate) fn add(&self, event: &Event) {
        if !self.keeps.get() || event.point.is_none() {
            return;
        }
        let mut events = self.by_stream[event.stream() as usize].borrow_mut();
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back(event.clone());
    }

    /// Returns the event with as many later ones on its stream as `logged`; `None` if it is not kept.
    pub(crate) fn find(&self, logged: LoggedEvent) -> Option<Event> {
        let events = self.by_stream[logged.stream as usize].borrow();
        let index = events.len().checked_sub(usize::try_from(logged.later).ok()?.checked_add(1)?)?;
        events.get(index).cloned()
    }
}
