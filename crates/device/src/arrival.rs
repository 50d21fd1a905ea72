//! Arrivals: values that another stream writes. Compute work that reads them waits for that stream; earlier
//! work does not wait.

use std::cell::Cell;
use std::rc::Rc;

use crate::device::Device;
use crate::error::Result;
use crate::event::Event;
use crate::marks::Mark;
use crate::moment::Wait;
use crate::repeat::Repeat;
use crate::stream::StreamKind;

/// The end of another stream's work that fills some memory, which may be many buffers. The compute stream
/// waits for it once, at the first use of any of them.
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
    /// is kept and returned by the next call that gives the device work.
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

    /// Does work that keeps the compute stream waiting for `stream`, and notes how long.
    pub fn noted<T>(&self, stream: StreamKind, work: impl FnOnce() -> T) -> Result<T> {
        self.begin_note()?;
        let done = work();
        self.end_note(stream)?;
        Ok(done)
    }

    /// Notes the beginning of a wait.
    pub(crate) fn begin_note(&self) -> Result<()> {
        let begin = || {
            self.captures().notes.borrow_mut().push(self.moment()?);
            Ok(((), Repeat::BeginNote))
        };
        self.between_graphs(begin)
    }

    /// Notes the end of the last wait that began, for `stream`.
    pub(crate) fn end_note(&self, stream: StreamKind) -> Result<()> {
        let end = || {
            let before = self.captures().notes.borrow_mut().pop();
            let after = self.moment()?;
            self.waits().borrow_mut().extend(before.map(|before| Wait { stream, before, after }));
            Ok(((), Repeat::EndNote(stream)))
        };
        self.between_graphs(end)
    }

    /// Returns the compute stream's waits for arrivals since the last call, in order: the stream that it
    /// waited for, a mark before and one after.
    pub fn take_waits(&self) -> Vec<(StreamKind, Mark, Mark)> {
        let marked = |wait: Wait| (wait.stream, self.marked(wait.before), self.marked(wait.after));
        self.waits().take().into_iter().map(marked).collect()
    }
}
