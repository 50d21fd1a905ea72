//! Events, waits and streams of a device.

use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;
use std::sync::Arc;

use super::{Device, OnDevice};
use crate::call_log::{LoggedCall, LoggedEvent};
use crate::cuda::{Cuda, Named, Point, SharedPoint, WaitGuard};
use crate::error::{DeviceError, Result};
use crate::event::{Event, SharedEvent};
use crate::repeat::Repeat;
use crate::stream::StreamKind;

/// The streams for communication between ranks.
const BETWEEN_RANKS: [StreamKind; 3] = [StreamKind::Reduce, StreamKind::Transfer, StreamKind::Exchange];

impl Device {
    /// Records an event after the work enqueued on `stream` so far.
    pub fn record(&self, stream: StreamKind) -> Result<Event> {
        self.between_graphs(|| Ok((self.record_now(stream)?, Repeat::Record(stream))))
    }

    fn record_now(&self, stream: StreamKind) -> Result<Event> {
        let count = &self.0.events[stream as usize];
        let sequence = count.replace(count.get() + 1);
        self.log(|| LoggedCall::Record(stream));
        let event = Event { stream, sequence, point: self.point(stream)?.map(Rc::new) };
        self.captures().recent.add(&event);
        Ok(event)
    }

    /// Records a driver event after the work on `stream` so far; `None` if the device is not a GPU.
    fn point(&self, stream: StreamKind) -> Result<Option<Point>> {
        let record = |cuda: &Cuda| cuda.events.record(cuda.streams.handle(stream));
        self.gpu().map(record).transpose().on(self)
    }

    /// Makes work enqueued on `stream` from now on start after `event`.
    pub fn wait(&self, stream: StreamKind, event: &Event) -> Result<()> {
        // CPU and Meta finish each call before the next begins, so a recorded event is always done.
        debug_assert!(event.sequence < self.0.events[event.stream as usize].get());
        let logged = self.logged_event(event);
        let wait = || {
            self.0.waits_made.set(self.0.waits_made.get() + 1);
            self.log(|| LoggedCall::Wait { stream, event: logged });
            self.hold(stream, event.point.as_deref())?;
            Ok(((), Repeat::Wait { stream, event: logged }))
        };
        self.between_graphs(wait)
    }

    /// Makes `stream` wait for a driver event.
    fn hold(&self, stream: StreamKind, point: Option<&Point>) -> Result<()> {
        let held = self.gpu().zip(point).map(|(cuda, point)| point.hold(cuda.streams.handle(stream)));
        held.transpose().map(drop).on(self)
    }

    fn logged_event(&self, event: &Event) -> LoggedEvent {
        let recorded = self.0.events[event.stream as usize].get();
        LoggedEvent { stream: event.stream, later: recorded.saturating_sub(event.sequence + 1) }
    }

    /// Makes `stream` wait for the event that a replay made in the position of `logged`: as many later events
    /// are on its stream. Used by replays.
    pub(crate) fn wait_again(&self, stream: StreamKind, logged: LoggedEvent) -> Result<()> {
        // The newest event is later than one that is no longer known.
        let point = match self.captures().recent.find(logged) {
            Some(event) => event.point,
            None => self.point(logged.stream)?.map(Rc::new),
        };
        let sequence = self.0.events[logged.stream as usize].get().saturating_sub(logged.later + 1);
        self.wait(stream, &Event { stream: logged.stream, sequence, point })
    }

    /// Returns the number of events recorded and of waits between streams so far.
    pub fn stream_calls(&self) -> u64 {
        self.0.events.iter().map(Cell::get).sum::<u64>() + self.0.waits_made.get()
    }

    /// Makes compute work from now on start after all work so far on the streams between ranks.
    pub fn join_streams(&self) -> Result<()> {
        BETWEEN_RANKS.into_iter().try_for_each(|stream| self.order(stream, StreamKind::Compute))
    }

    /// Makes work from now on on the streams between ranks start after all compute work so far.
    pub fn fork_streams(&self) -> Result<()> {
        BETWEEN_RANKS.into_iter().try_for_each(|stream| self.order(StreamKind::Compute, stream))
    }

    /// Makes later work of stream `after` start after all work of `before` so far. The event is not counted.
    fn order(&self, before: StreamKind, after: StreamKind) -> Result<()> {
        self.hold(after, self.point(before)?.as_ref())
    }

    /// Records an event after the work enqueued on `stream` so far, for streams of other ranks in this
    /// process.
    pub fn record_shared(&self, stream: StreamKind) -> Result<SharedEvent> {
        self.interrupt_capture("an event for other ranks")?;
        let record = |cuda: &Cuda| SharedPoint::record(&cuda.context, cuda.streams.handle(stream));
        let point = self.gpu_to_use()?.map(record).transpose().on(self)?;
        Ok(SharedEvent { point: point.map(Arc::new) })
    }

    /// Makes work enqueued on `stream` from now on start after an event of any rank in this process.
    pub fn wait_shared(&self, stream: StreamKind, event: &SharedEvent) -> Result<()> {
        self.interrupt_capture("a wait for an event of other ranks")?;
        match (self.gpu_to_use()?, &event.point) {
            (Some(cuda), Some(point)) => point.hold(cuda.streams.handle(stream)).on(self),
            _ => Ok(()),
        }
    }

    /// Waits on the host until all work enqueued so far is done.
    pub fn synchronize(&self) -> Result<()> {
        self.log(|| LoggedCall::Synchronize);
        self.interrupt_capture("a wait of the host")?;
        let Some(cuda) = self.gpu() else { return Ok(()) };
        let wait = |stream| cuda.events.record(cuda.streams.handle(stream))?.wait();
        StreamKind::ALL.into_iter().try_for_each(wait).on(self)
    }

    /// Waits on the host for `event`.
    pub fn wait_on_host(&self, event: &Event) -> Result<()> {
        self.log(|| LoggedCall::HostWait(self.logged_event(event)));
        self.interrupt_capture("a wait of the host")?;
        event.point.as_ref().map_or(Ok(()), |point| point.wait()).on(self)
    }

    /// Sets a guard for all later host waits on this device. It receives the time waited so far and may end
    /// the wait with a reason, because work that waits for another rank may never finish. The host waits on
    /// GPUs only.
    pub fn set_guard(&self, guard: Option<WaitGuard>) {
        if let Some(cuda) = self.gpu() {
            cuda.events.set_guard(guard);
        }
    }

    /// Returns the driver's handle of a stream, for a library that enqueues on it.
    ///
    /// # Errors
    /// The device is not a GPU; an earlier error that could not be returned at once.
    pub fn stream_handle(&self, stream: StreamKind) -> Result<*mut c_void> {
        self.interrupt_capture("a call of another library")?;
        Ok(self.gpu_or_refuse("stream_handle")?.streams.handle(stream).cast())
    }

    /// Makes this GPU the current device of the calling thread, for libraries. Does nothing on other
    /// backends.
    pub fn make_current(&self) -> Result<()> {
        self.make_current_elsewhere()()
    }

    /// Returns a function that makes this GPU the current device of the thread that calls it.
    pub fn make_current_elsewhere(&self) -> impl FnOnce() -> Result<()> + Send + use<> {
        let context = self.gpu().map(|cuda| Arc::clone(&cuda.context));
        let rank = self.0.rank;
        let device = self.0.description.name.clone();
        move || {
            let bound = context.map_or(Ok(()), |context| context.bind_to_thread().named("cuCtxSetCurrent"));
            bound.map_err(|source| DeviceError::Cuda { rank, device, source })
        }
    }
}
