//! Capture of compute work: on a GPU, calls become a CUDA graph that is launched again and again.
//!
//! Between [`Device::begin_capture`] and [`Device::end_capture`] compute work does not run at once. An event,
//! a wait between streams, work on another stream or a call of a process group divides it: the work so far is
//! launched as a graph, the call is made and kept ([`RepeatedCall`]), and the capture goes on. A call that
//! cannot be made again, such as a copy from the host, ends the capture by itself: the work so far is
//! launched, the call is made as usual, and [`Device::end_capture`] names it.

use memory::Script;

use crate::cuda::graph::{self, CudaGraph};
use crate::device::{Device, OnDevice};
use crate::error::{DeviceError, Result};
use crate::repeat::{Held, Repeat, Repetition};
use crate::repeated_call::RepeatedCall;
use crate::stream::StreamKind;

/// Compute work that was captured, with the addresses that it had.
#[derive(Debug)]
pub struct Graph {
    // Dropped before the device.
    graph: CudaGraph,
    device: Device,
}

/// A piece of captured work.
#[derive(Debug)]
pub enum Piece {
    /// Calls on the compute stream.
    Graph(Graph),
    /// A call between graphs.
    Call(RepeatedCall),
}

/// The end of a capture, whose work has all been enqueued.
#[derive(Debug)]
pub enum Captured {
    /// The captured work, in order.
    Whole(Vec<Piece>),
    /// A call that cannot be captured.
    Interrupted(&'static str),
}

impl Device {
    /// Returns a reason why the device cannot capture work, if there is one.
    pub fn refuses_capture(&self) -> Option<&'static str> {
        let cuda = self.gpu()?;
        match graph::is_available() {
            false => Some("the driver is older than CUDA 12.3's"),
            true if cuda.profile.borrow().is_some() => Some("calls are timed one by one"),
            true => None,
        }
    }

    /// Starts to capture the compute stream. On Meta, there are no graphs between the calls.
    pub fn begin_capture(&self) -> Result<()> {
        self.captures().interrupted.set(None);
        self.captures().pieces.borrow_mut().clear();
        self.captures().recent.keep();
        self.resume_capture()
    }

    /// Returns whether work is captured.
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

    /// Ends the capture, after launching the work that it still holds back.
    ///
    /// # Errors
    /// The driver's, also if a call could not be captured; the captured work is lost then.
    pub fn end_capture(&self) -> Result<Captured> {
        if let Some(call) = self.captures().interrupted.take() {
            return Ok(Captured::Interrupted(call));
        }
        self.end_graph()?;
        let piece = |held| match held {
            Held::Graph(graph) => Piece::Graph(Graph { graph, device: self.clone() }),
            Held::Call(call) => Piece::Call(RepeatedCall(call)),
        };
        Ok(Captured::Whole(self.captures().pieces.take().into_iter().map(piece).collect()))
    }

    /// Ends the present graph, if work is captured, and launches it. Returns whether work was captured.
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

    /// Makes a call that a graph cannot contain, and that says how it is made again. While work is captured,
    /// the work before it is launched, and a replay makes the call again.
    pub(crate) fn between_graphs<T>(&self, call: impl FnOnce() -> Result<(T, Repeat)>) -> Result<T> {
        if !self.end_graph()? {
            return Ok(call()?.0);
        }
        let (done, repeat) = call()?;
        self.captures().pieces.borrow_mut().push(Held::Call(repeat));
        self.resume_capture()?;
        Ok(done)
    }

    /// Makes a call of a process group. While work is captured, the work before it is launched, and a replay
    /// runs the `repetition`.
    ///
    /// # Errors
    /// Errors of the call, within; the driver's.
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

    /// Ends a capture after an error; its work is lost.
    pub fn abandon_capture(&self) {
        self.captures().interrupted.set(None);
        self.captures().pieces.take();
        if let Some(cuda) = self.gpu().filter(|_| self.captures().is_on.replace(false)) {
            graph::abandon(cuda.streams.handle(StreamKind::Compute));
        }
    }

    /// Ends the capture, if there is one, before `call`, which cannot be captured: launches its work.
    pub(crate) fn interrupt_capture(&self, call: &'static str) -> Result<()> {
        if self.end_graph()? {
            self.captures().pieces.take();
            self.captures().interrupted.set(Some(call));
        }
        Ok(())
    }

    /// Repeats the operations of `script` up to its first `end`, without it all that are left, as
    /// [`memory::Allocator::repeat`] does, for the step that labels allocations at present.
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
    /// Enqueues the work on the compute stream. Random numbers that belong to a micro-batch are those of the
    /// micro-batch whose number is larger by `shift` than when the work was captured.
    pub fn launch(&mut self, shift: u64) -> Result<()> {
        let Some(cuda) = self.device.gpu_to_use()? else { return Ok(()) };
        let launched = self.graph.launch(cuda.streams.handle(StreamKind::Compute), shift);
        launched.on(&self.device)
    }

    /// Number of captured calls.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.graph.calls()
    }
}
