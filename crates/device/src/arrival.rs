//! Values that another stream brings: compute work that touches their memory comes after them, and no work
//! before it waits.

use std::cell::Cell;
use std::rc::Rc;

use crate::device::Device;
use crate::error::Result;
use crate::event::Event;
use crate::marks::Mark;
use crate::moment::Wait;
use crate::stream::StreamKind;

/// The end of what a stream brings into some memory, which may be many buffers. Compute is made to wait for
/// it once, however many of them it touches.
#[derive(Clone, Debug)]
pub struct Arrival(Rc<Coming>);

#[derive(Debug)]
struct Coming {
    event: Event,
    awaited: Cell<bool>,
}

impl Device {
    /// Marks the work given to `stream` so far as arriving. Errors: the driver's.
    pub fn arrival(&self, stream: StreamKind) -> Result<Arrival> {
        Ok(Arrival(Rc::new(Coming { event: self.record(stream)?, awaited: Cell::new(false) })))
    }

    /// Makes compute work that is enqueued from now on start after `arrival`, unless it does already. A
    /// driver that refuses is heard in the next call that gives the device work.
    pub fn await_arrival(&self, arrival: &Arrival) {
        let Coming { event, awaited } = &*arrival.0;
        if awaited.replace(true) {
            return;
        }
        let wait = || -> Result<Wait> {
            let before = self.moment()?;
            self.wait(StreamKind::Compute, event)?;
            Ok((before, self.moment()?))
        };
        match wait() {
            Ok(wait) => self.waits().borrow_mut().push(wait),
            Err(error) => self.defer(error),
        }
    }

    /// Waits of compute for arrivals since the last call, in order: a mark before and one after each. They
    /// are kept until somebody takes them.
    pub fn take_waits(&self) -> Vec<(Mark, Mark)> {
        let waits = self.waits().take();
        waits.into_iter().map(|(before, after)| (self.marked(before), self.marked(after))).collect()
    }
}
