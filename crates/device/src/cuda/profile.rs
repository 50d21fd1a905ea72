//! Times of the device's work, for benchmarks.

use std::cell::RefCell;
use std::rc::Rc;

use cudarc::driver::sys;

use super::Cuda;
use super::error::Result;
use super::gates::Gates;
use super::signals::{self, SignalPage};
use super::streams::EventPool;
use super::timing::{Call, Profile, Timed};
use crate::device::{Device, OnDevice};
use crate::stream::StreamKind;
use crate::work::Work;

/// One call, timed on the device.
#[derive(Clone, Debug)]
pub struct TimedCall {
    /// Family of the kernel, or `matmul`, `copy`.
    pub family: &'static str,
    /// Name of the kernel or call.
    pub name: String,
    /// Stream of the call.
    pub stream: StreamKind,
    /// Milliseconds from the start of the profile to the start of the call.
    pub begin_milliseconds: f32,
    /// Milliseconds between the events before and after the call.
    pub milliseconds: f32,
    /// Minimum bytes and FLOPs of the call.
    pub work: Work,
}

/// Timer of work that is being enqueued on a stream.
#[must_use]
pub struct Span<'a> {
    device: &'a Device,
    timed: Option<Timed>,
}

impl Span<'_> {
    /// Ends the span. Its work must have been enqueued.
    pub fn end(self) -> crate::Result<()> {
        let ended = self.timed.map_or(Ok(()), Timed::finish);
        ended.on(self.device)
    }
}

impl Cuda {
    /// Starts timing a call, if a profile is being recorded.
    pub(crate) fn timed(
        &self,
        stream: sys::CUstream,
        family: &'static str,
        name: impl FnOnce() -> String,
        work: Work,
    ) -> Timed {
        Timed::begin(self.profile.borrow().clone(), stream, family, name, work)
    }
}

impl Device {
    /// Times every call from now on. Does nothing unless the device is a GPU.
    pub fn begin_profile(&self) {
        self.begin(None);
    }

    /// Times every call from now on, without the host's delays: the device begins a group of calls only when
    /// the host has enqueued all of them. Does nothing unless the device is a GPU.
    pub fn begin_profile_ahead(&self) -> crate::Result<()> {
        let Some(cuda) = self.gpu() else { return Ok(()) };
        let gates = SignalPage::own(&cuda.context).and_then(|page| {
            Gates::new(page, cuda.streams.handle(StreamKind::Compute)).map_err(signals::refused)
        });
        self.begin(Some(gates.on(self)?));
        Ok(())
    }

    fn begin(&self, gates: Option<Gates>) {
        if let Some(cuda) = self.gpu() {
            let pool = EventPool::new(&cuda.context, true);
            let start = pool.record(cuda.streams.handle(StreamKind::Compute));
            let profile = Profile { pool, start, calls: RefCell::default(), gates };
            *cuda.profile.borrow_mut() = Some(Rc::new(profile));
        }
    }

    /// Starts timing work that the caller enqueues on `stream` without this device's methods. A running
    /// profile records it from here to `Span::end`.
    pub fn span(&self, stream: StreamKind, family: &'static str, name: &'static str) -> Span<'_> {
        let begin = |cuda: &Cuda| {
            cuda.timed(cuda.streams.handle(stream), family, || name.to_owned(), Work::default())
        };
        let timed = self.gpu().map(begin);
        Span { device: self, timed }
    }

    /// Ends the profile and returns its calls in order. Waits for the device.
    pub fn end_profile(&self) -> crate::Result<Vec<TimedCall>> {
        let Some(cuda) = self.gpu() else { return Ok(Vec::new()) };
        let Some(profile) = cuda.profile.borrow_mut().take() else { return Ok(Vec::new()) };
        if let Some(gates) = &profile.gates {
            gates.open();
        }
        self.synchronize()?;
        let kind = |stream| StreamKind::ALL.into_iter().find(|kind| cuda.streams.handle(*kind) == stream);
        let timed = |call: &Call| -> Result<TimedCall> {
            let Call { stream, begin, end, family, name, work } = call;
            let start = profile.start.as_ref().map_err(Clone::clone)?;
            Ok(TimedCall {
                family,
                name: name.clone(),
                stream: kind(*stream).unwrap_or(StreamKind::Compute),
                begin_milliseconds: start.until(begin)?,
                milliseconds: begin.until(end)?,
                work: *work,
            })
        };
        let calls = profile.calls.borrow();
        calls.iter().map(timed).collect::<Result<_>>().on(self)
    }
}
