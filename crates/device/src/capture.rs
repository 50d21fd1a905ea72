//! Capture of compute work: on a GPU, calls become CUDA graphs that are launched again and again.
//!
//! Between [`Device::begin_capture`] and [`Device::end_capture`] compute work does not run at once. Some
//! calls divide the capture: events, waits between streams, work on another stream, and calls of process
//! groups. For such a call, the work so far is launched as a graph, the call is made and kept
//! ([`RepeatedCall`]), and the next graph begins. A call that cannot be repeated, such as a copy from the
//! host, ends the capture: the work so far is launched, the call is made as usual, and
//! [`Device::end_capture`] returns its name.

use memory::Script;

use crate::cuda::graph::{self, CudaGraph};
use crate::device::{Device, OnDevice};
use crate::error::{DeviceError, Result};
use crate::repeat::{Held, Repeat, Repetition};
use crate::repeated_call::RepeatedCall;
use crate::stream::StreamKind;

/// Captured compute work with fixed addresses, ready to be launched again.
#[derive(Debug)]
pub struct Graph {
    // Dropped before the device.
    graph: CudaGraph,
    device: Device,
}

/// A part of a captured step.
#[derive(Debug)]
pub enum CapturedPart {
    /// Calls on the compute stream, as a graph.
    Graph(Graph),
    /// A call between two graphs.
    Call(RepeatedCall),
}

/// Result of a capture. All its work has been enqueued once.
#[derive(Debug)]
pub enum Captured {
    /// The captured parts, in order.
    Whole(Vec<CapturedPart>),
    /// The name of a call that cannot be captured, which ended the capture.
    Interrupted(&'static str),
}

impl Device {
    /// Returns why the device cannot capture work; `None` if it can.
    pub fn refuses_capture(&self) -> Option<&'static str> {
        let cuda = self.gpu()?;
        match graph::is_available() {
            false => Some("the driver is older than CUDA 12.3's"),
            true if cuda.profile.borrow().is_some() => Some("calls are timed one by one"),
            true => None,
        }
    }

    /// Starts to capture the compute stream. On Meta, only the calls between graphs are kept.
    pub fn begin_capture(&self) -> Result<()> {
        self.captures().interrupted.set(None);
        self.captures().pieces.borrow_mut().clear();
        self.captures().recent.keep();
        self.resume_capture()
    }

    /// Returns whether a capture is in progress.
    pub fn is_capturing(&self) -> bool {
        self.captures().is_on()
    }

    /// Starts to capture the next graph.
    fn resume_capture(&self) -> Result<()> {
        if let Some(cuda) = self.gpu_to_use()? {
            self.captures().numbered.borrow_mut().clear();
            let stream = cuda.streams.handle(StreamKind::Compute);
            graph::begin(stream).on(self)?;
        }
        self.captures().is_on.set(true);
        Ok(())
    }

    /// Launches the captured work that has not run yet, and ends the capture.
    ///
    /// # Errors
    /// The driver's, also if a call could not be captured; the captured work is lost then.
    pub fn end_capture(&self) -> Result<Captured> {
        if let Some(call) = self.captures().interrupted.take() {
            return Ok(Captured::Interrupted(call));
        }
        self.end_graph()?;
        let piece = |held| match held {
            Held::Graph(graph) => CapturedPart::Graph(Graph { graph, device: self.clone() }),
            Held::Call(call) => CapturedPart::Call(RepeatedCall(call)),
        };
        Ok(Captured::Whole(self.captures().pieces.take().into_iter().map(piece).collect()))
    }

    /// Ends and launches the current graph. Returns whether a capture was in progress.
    fn end_graph(&self) -> Result<bool> {
        if !self.captures().is_on.replace(false) {
            return Ok(false);
        }
        if let Some(cuda) = self.gpu() {
            let stream = cuda.streams.handle(StreamKind::Compute);
            let numbered = self.captures().numbered.take();
            let graph = graph::end(&cuda.context, stream, numbered).on(self)?;
            if let Some(mut graph) = graph {
                graph.launch(stream, 0).on(self)?;
                self.captures().pieces.borrow_mut().push(Held::Graph(graph));
            }
        }
        Ok(true)
    }

    /// Makes a call that a graph cannot contain, and records how to repeat it. During a capture, earlier work
    /// is launched first, and a replay repeats the call.
    pub(crate) fn between_graphs<T>(&self, call: impl FnOnce() -> Result<(T, Repeat)>) -> Result<T> {
        if !self.end_graph()? {
            return Ok(call()?.0);
        }
        let (done, repeat) = call()?;
        self.captures().pieces.borrow_mut().push(Held::Call(repeat));
        self.resume_capture()?;
        Ok(done)
    }

    /// Makes a call of a process group. During a capture, earlier work is launched first, and a replay runs
    /// `repetition`.
    ///
    /// # Errors
    /// Inner errors: the call's; outer errors: the driver's.
    pub fn make_repeated<T, E>(
        &self,
        call: impl FnOnce() -> std::result::Result<T, E>,
        repetition: impl FnOnce() -> Repetition,
    ) -> Result<std::result::Result<T, E>> {
        if !self.end_graph()? {
            return Ok(call());
        }
        let done = call();
        if done.is_ok() {
            self.captures().pieces.borrow_mut().push(Held::Call(Repeat::Other(repetition())));
        }
        self.resume_capture()?;
        Ok(done)
    }

    /// Ends a capture after an error. Its work is lost.
    pub fn abandon_capture(&self) {
        self.captures().interrupted.set(None);
        self.captures().pieces.take();
        if let Some(cuda) = self.gpu().filter(|_| self.captures().is_on.replace(false)) {
            graph::abandon(cuda.streams.handle(StreamKind::Compute));
        }
    }

    /// Ends the capture, if there is one, before `call`, which cannot be captured, and launches the work so
    /// far.
    pub(crate) fn interrupt_capture(&self, call: &'static str) -> Result<()> {
        if self.end_graph()? {
            self.captures().pieces.take();
            self.captures().interrupted.set(Some(call));
        }
        Ok(())
    }

    /// Repeats the allocations and frees of `script` up to operation number `end`, or all remaining ones for
    /// `None`, as [`memory::Allocator::repeat`] does. They are labelled with the current step.
    pub fn repeat(&self, script: &mut Script, end: Option<usize>) -> Result<()> {
        let step = self.step();
        let repeated = self.with_allocator(|allocator| allocator.repeat(script, end, step));
        repeated.map_err(|source| DeviceError::Allocation {
            rank: self.rank(),
            device: self.description().name.clone(),
            operator: "captured step",
            bytes: 0,
            source,
        })
    }
}

impl Graph {
    /// Enqueues the work on the compute stream. Random numbers that depend on the micro-batch's number take
    /// that number increased by `shift` since the capture.
    pub fn launch(&mut self, shift: u64) -> Result<()> {
        let Some(cuda) = self.device.gpu_to_use()? else { return Ok(()) };
        let launched = self.graph.launch(cuda.streams.handle(StreamKind::Compute), shift);
        launched.on(&self.device)
    }

    /// Returns the number of captured calls.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.graph.calls()
    }
}
