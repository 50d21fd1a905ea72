//! Arrivals: moments at which another stream has filled some memory. Compute work that reads the memory waits
//! for that stream; earlier compute work does not.

use std::cell::Cell;
use std::rc::Rc;

use crate::device::Device;
use crate::error::Result;
use crate::event::Event;
use crate::marks::Mark;
use crate::moment::Wait;
use crate::repeat::Repeat;
use crate::stream::StreamKind;

/// End of another stream's work that fills memory of one or more buffers. The compute stream waits for it
/// once, at the first use of any of them.
#[derive(Clone, Debug)]
pub struct Arrival(Rc<Coming>);

#[derive(Debug)]
struct Coming {
    event: Event,
    awaited: Cell<bool>,
}

impl Device {
    /// Returns the arrival of the work enqueued on `stream` so far.
    pub fn arrival(&self, stream: StreamKind) -> Result<Arrival> {
        Ok(Arrival(Rc::new(Coming { event: self.record(stream)?, awaited: Cell::new(false) })))
    }

    /// Makes compute work enqueued from now on start after `arrival`, unless it already does. A driver error
    /// is returned by the next call that enqueues work.
    pub fn await_arrival(&self, arrival: &Arrival) {
        let Coming { event, awaited } = &*arrival.0;
        if awaited.replace(true) {
            return;
        }
        let waited = self.noted(event.stream(), || self.wait(StreamKind::Compute, event));
        if let Err(error) = waited.and_then(|waited| waited) {
            self.defer(error);
        }
    }

    /// Runs `work`, during which the compute stream waits for `stream`, and records how long it waits.
    pub fn noted<T>(&self, stream: StreamKind, work: impl FnOnce() -> T) -> Result<T> {
        self.begin_note()?;
        let done = work();
        self.end_note(stream)?;
        Ok(done)
    }

    /// Records the beginning of a wait.
    pub(crate) fn begin_note(&self) -> Result<()> {
        let begin = || {
            self.captures().notes.borrow_mut().push(self.moment()?);
            Ok(((), Repeat::BeginNote))
        };
        self.between_graphs(begin)
    }

    /// Records the end of the last wait begun, for `stream`.
    pub(crate) fn end_note(&self, stream: StreamKind) -> Result<()> {
        let end = || {
            let before = self.captures().notes.borrow_mut().pop();
            let after = self.moment()?;
            self.waits().borrow_mut().extend(before.map(|before| Wait { stream, before, after }));
            Ok(((), Repeat::EndNote(stream)))
        };
        self.between_graphs(end)
    }

    /// Returns the compute stream's waits for arrivals since the last call, in order. Each is the stream
    /// waited for, and the marks before and after the wait.
    pub fn take_waits(&self) -> Vec<(StreamKind, Mark, Mark)> {
        let marked = |wait: Wait| (wait.stream, self.marked(wait.before), self.marked(wait.after));
        self.waits().take().into_iter().map(marked).collect()
    }
}
