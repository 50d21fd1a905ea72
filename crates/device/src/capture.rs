//! Capture of compute work: on a GPU, calls become a CUDA graph that is launched again and again.
//!
//! Between [`Device::begin_capture`] and [`Device::end_capture`] nothing runs. A call that cannot be
//! captured, such as a copy from the host or a wait, ends the capture by itself: the work so far is launched,
//! the call is made as usual, and [`Device::end_capture`] names it.

use memory::Script;

use crate::capture_state::Written;
use crate::cuda::graph::{self, CudaGraph};
use crate::device::Device;
use crate::dtype::Element;
use crate::error::{DeviceError, Result};
use crate::stream::StreamKind;

/// Compute work that was captured, with the addresses that it had.
#[derive(Debug)]
pub struct Graph {
    // Dropped before the device.
    graph: CudaGraph,
    device: Device,
}

/// The end of a capture.
#[derive(Debug)]
pub enum Captured {
    /// The captured work, which has not run; `None` if there is none.
    Whole(Option<Graph>),
    /// A call that cannot be captured. All work has been enqueued.
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

    /// Starts to capture the compute stream. Other backends go on as usual.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin_capture(&self) -> Result<()> {
        let Some(cuda) = self.gpu_to_use()? else { return Ok(()) };
        self.captures().numbered.borrow_mut().clear();
        let stream = cuda.streams.handle(StreamKind::Compute);
        graph::begin(stream).map_err(|error| self.cuda_error(error))?;
        self.captures().interrupted.set(None);
        self.captures().is_on.set(true);
        Ok(())
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// The driver's, also if a call could not be captured; the captured work is lost then.
    pub fn end_capture(&self) -> Result<Captured> {
        if let Some(call) = self.captures().interrupted.take() {
            return Ok(Captured::Interrupted(call));
        }
        if !self.captures().is_on.replace(false) {
            return Ok(Captured::Whole(None));
        }
        let cuda = self.gpu_or_refuse("end_capture")?;
        let (stream, numbered) = (cuda.streams.handle(StreamKind::Compute), self.captures().numbered.take());
        let graph = graph::end(&cuda.context, stream, numbered).map_err(|error| self.cuda_error(error))?;
        Ok(Captured::Whole(graph.map(|graph| Graph { graph, device: self.clone() })))
    }

    /// Ends a capture after an error; its work is lost.
    pub fn abandon_capture(&self) {
        self.captures().interrupted.set(None);
        self.captures().written.take();
        if let Some(cuda) = self.gpu().filter(|_| self.captures().is_on.replace(false)) {
            graph::abandon(cuda.streams.handle(StreamKind::Compute));
        }
    }

    /// Ends the capture, if there is one, before `call`, which cannot be captured: launches its work.
    pub(crate) fn interrupt_capture(&self, call: &'static str) -> Result<()> {
        if !self.captures().is_on() {
            return Ok(());
        }
        if let Captured::Whole(Some(mut graph)) = self.end_capture()? {
            graph.launch(0)?;
        }
        self.captures().interrupted.set(Some(call));
        Ok(())
    }

    /// [`Device::interrupt_capture`] for a call on `stream`, unless that is the compute stream.
    pub(crate) fn interrupt_capture_on(&self, stream: StreamKind, call: &'static str) -> Result<()> {
        if stream == StreamKind::Compute { Ok(()) } else { self.interrupt_capture(call) }
    }

    /// Repeats the operations of `script` up to its first `end`, without it all that are left, as
    /// [`memory::Allocator::repeat`] does, for the step that labels allocations at present.
    ///
    /// # Errors
    /// The allocator's.
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

    /// Runs `body` and returns the addresses to which it copied from the host, in order.
    ///
    /// # Errors
    /// Errors of `body`.
    pub fn writes_of<T, E>(
        &self,
        body: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(T, Vec<Written>), E> {
        *self.captures().written.borrow_mut() = Some(Vec::new());
        let done = body();
        let written = self.captures().written.take().unwrap_or_default();
        Ok((done?, written))
    }

    /// Copies `values` from the host to where a copy of as many bytes went before. The caller makes sure that
    /// nobody else has the memory.
    ///
    /// # Errors
    /// Another number of bytes; the driver's.
    pub fn write_again<T: Element>(&self, written: Written, values: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(values);
        crate::transfer::same_length("write_again", bytes.len(), written.bytes)?;
        let Some(cuda) = self.gpu_to_use()? else { return Ok(()) };
        let stream = cuda.streams.handle(StreamKind::Compute);
        let copied = cuda.staging.borrow_mut().upload(bytes, written.address, stream);
        copied.map_err(|error| self.cuda_error(error))
    }
}

impl Graph {
    /// Enqueues the work on the compute stream. Random numbers that belong to a micro-batch are those of the
    /// micro-batch whose number is larger by `shift` than when the work was captured.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&mut self, shift: u64) -> Result<()> {
        let Some(cuda) = self.device.gpu_to_use()? else { return Ok(()) };
        let launched = self.graph.launch(cuda.streams.handle(StreamKind::Compute), shift);
        launched.map_err(|error| self.device.cuda_error(error))
    }

    /// Number of captured calls.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.graph.calls()
    }
}
