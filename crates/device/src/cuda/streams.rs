//! The driver's streams and events behind the logical streams.
#![allow(unsafe_code)] // streams and events are driver handles

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{self, CudaContext, result, sys};

use super::error::{CudaError, Named, Result};
use crate::stream::StreamKind;

/// One driver stream for each logical stream.
pub(crate) struct Streams {
    context: Arc<CudaContext>,
    handles: [sys::CUstream; StreamKind::ALL.len()],
}

// SAFETY: the driver's stream handles may be used from any thread whose context is current, which callers
// ensure.
unsafe impl Send for Streams {}
// SAFETY: as above; the driver locks internally.
unsafe impl Sync for Streams {}

impl Streams {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let (_, urgent) = result::stream::get_priority_range().named("cuCtxGetStreamPriorityRange")?;
        let mut handles = [std::ptr::null_mut(); StreamKind::ALL.len()];
        for kind in StreamKind::ALL {
            // Work that other ranks or compute wait for has priority as soon as a multiprocessor is free.
            let priority = if kind == StreamKind::Compute { 0 } else { urgent };
            // Non-blocking streams avoid the implicit waits of the legacy default stream.
            let flags = result::stream::StreamKind::NonBlocking;
            let stream = result::stream::create_with_priority(flags, priority);
            handles[kind as usize] = stream.named("cuStreamCreateWithPriority")?;
        }
        Ok(Streams { context: Arc::clone(context), handles })
    }

    /// Waits for the work enqueued on all streams. A wait for the whole context would break captures of other
    /// devices of the process on the same GPU.
    pub(crate) fn synchronize(&self) -> std::result::Result<(), driver::DriverError> {
        // SAFETY: the streams are alive until `self` is dropped.
        self.handles.into_iter().try_for_each(|handle| unsafe { result::stream::synchronize(handle) })
    }

    pub(crate) fn handle(&self, kind: StreamKind) -> sys::CUstream {
        self.handles[kind as usize]
    }

    /// Returns the driver stream of an allocator's stream handle; for an unknown handle, the compute stream.
    pub(crate) fn find(&self, stream: memory::Stream) -> sys::CUstream {
        let kind = StreamKind::ALL.into_iter().find(|kind| kind.handle() == stream);
        self.handle(kind.unwrap_or(StreamKind::Compute))
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        for handle in self.handles.into_iter().filter(|handle| !handle.is_null()) {
            // SAFETY: created in `new` and destroyed once. The driver finishes enqueued work first.
            let _ = unsafe { result::stream::destroy(handle) };
        }
    }
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Streams")
    }
}

/// Callback of a host wait. It receives the time waited so far and may return a reason to stop waiting.
pub type WaitGuard = Rc<dyn Fn(Duration) -> Option<String>>;

/// Time during which a guarded wait polls the driver continuously.
const SPIN: Duration = Duration::from_micros(50);
/// Interval between later polls. Each poll also calls the guard.
const PAUSE: Duration = Duration::from_micros(50);

pub(crate) struct EventPool {
    context: Arc<CudaContext>,
    flags: sys::CUevent_flags,
    guard: RefCell<Option<WaitGuard>>,
    idle: RefCell<Vec<sys::CUevent>>,
}

impl EventPool {
    /// Creates an empty pool of events. With `timed`, events record times.
    pub(crate) fn new(context: &Arc<CudaContext>, timed: bool) -> Rc<Self> {
        let flags = match timed {
            true => sys::CUevent_flags_enum::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
        };
        Rc::new(EventPool {
            context: Arc::clone(context),
            flags,
            guard: RefCell::default(),
            idle: RefCell::default(),
        })
    }

    /// Sets the guard of later waits; `None`: no guard.
    pub(crate) fn set_guard(&self, guard: Option<WaitGuard>) {
        *self.guard.borrow_mut() = guard;
    }

    /// Records an event after the work enqueued on `stream` so far.
    pub(crate) fn record(self: &Rc<Self>, stream: sys::CUstream) -> Result<Point> {
        let idle = self.idle.borrow_mut().pop();
        let event = match idle {
            Some(event) => event,
            None => result::event::create(self.flags).named("cuEventCreate")?,
        };
        let point = Point { pool: Rc::clone(self), event };
        // SAFETY: event and stream are of this context and alive.
        unsafe { result::event::record(event, stream) }.named("cuEventRecord")?;
        Ok(point)
    }
}

impl std::fmt::Debug for EventPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventPool")
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        for event in self.idle.get_mut().drain(..) {
            // SAFETY: no point holds it, and it is destroyed once.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

/// Returns whether the work before `event`, which must be alive, is done.
fn is_over(event: sys::CUevent) -> Result<bool> {
    // SAFETY: points pass their own event, which is alive as long as they are.
    match unsafe { result::event::query(event) } {
        Ok(()) => Ok(true),
        Err(driver::DriverError(sys::cudaError_enum::CUDA_ERROR_NOT_READY)) => Ok(false),
        Err(error) => Err(error).named("cuEventQuery"),
    }
}

/// A point in a stream's work. Its event returns to the pool on drop.
#[derive(Debug)]
pub(crate) struct Point {
    pool: Rc<EventPool>,
    event: sys::CUevent,
}

impl Point {
    /// Returns whether the work before the event is done.
    pub(crate) fn is_over(&self) -> Result<bool> {
        is_over(self.event)
    }

    /// Waits on the host. A guard, if set, is asked regularly whether to keep waiting, because work that
    /// waits for another rank may never finish.
    pub(crate) fn wait(&self) -> Result<()> {
        let guard = self.pool.guard.borrow().clone();
        let Some(guard) = guard else {
            // SAFETY: the event is alive as long as `self`.
            return unsafe { result::event::synchronize(self.event) }.named("cuEventSynchronize");
        };
        let began = Instant::now();
        while !self.is_over()? {
            match began.elapsed() {
                waited if waited < SPIN => std::hint::spin_loop(),
                waited => {
                    if let Some(text) = guard(waited) {
                        return Err(CudaError { call: "waiting for the device", code: 0, text });
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
        Ok(())
    }

    /// Makes `stream` wait for this point.
    pub(crate) fn hold(&self, stream: sys::CUstream) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event are of one context and alive; the driver keeps the point, not the event.
        unsafe { result::stream::wait_event(stream, self.event, flags) }.named("cuStreamWaitEvent")
    }

    /// Returns the milliseconds from this point to a later one. Both must be done and from a pool of timed
    /// events.
    pub(crate) fn until(&self, later: &Point) -> Result<f32> {
        // SAFETY: both events are alive.
        unsafe { result::event::elapsed(self.event, later.event) }.named("cuEventElapsedTime")
    }
}

/// A point in a stream's work for which streams of any thread of this process can wait. Its event is not
/// pooled and is recorded once, so that a wait never refers to a later point.
pub(crate) struct SharedPoint {
    context: Arc<CudaContext>,
    event: sys::CUevent,
}

// SAFETY: the driver's event handles may be used from any thread, and the driver locks internally.
unsafe impl Send for SharedPoint {}
// SAFETY: as above.
unsafe impl Sync for SharedPoint {}

impl SharedPoint {
    /// Records a point after the work enqueued so far on `stream`, a stream of this context.
    pub(crate) fn record(context: &Arc<CudaContext>, stream: sys::CUstream) -> Result<Self> {
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).named("cuEventCreate")?;
        let point = SharedPoint { context: Arc::clone(context), event };
        // SAFETY: event and stream are of this context and alive.
        unsafe { result::event::record(event, stream) }.named("cuEventRecord")?;
        Ok(point)
    }

    /// Returns whether the work before the point is done. May be called on any thread.
    pub(crate) fn is_over(&self) -> Result<bool> {
        self.context.bind_to_thread().named("cuCtxSetCurrent")?;
        is_over(self.event)
    }

    /// Waits on the host. May be called on any thread.
    pub(crate) fn wait(&self) -> Result<()> {
        while !self.is_over()? {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Makes `stream` wait for the point.
    pub(crate) fn hold(&self, stream: sys::CUstream) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event are alive; the driver keeps the point, not the event.
        unsafe { result::stream::wait_event(stream, self.event, flags) }.named("cuStreamWaitEvent")
    }
}

impl Drop for SharedPoint {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: created once and destroyed once; the driver releases an event when its work is done.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}

impl std::fmt::Debug for SharedPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedPoint")
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        self.pool.idle.borrow_mut().push(self.event);
    }
}
