//! One rank's work on the memory of the ranks that share its GPU.

use device::cuda::{Extent, PeerAddress, PeerMemory};
use device::{DType, Device, DeviceError, Region, Result, SharedEvent, StreamKind};
use tensor::ops::tree::{self, SumTree, TreeKernel};

use super::offers::Span;
use crate::collective::Reach;

/// Bytes of a vector that kernels move if all addresses are aligned to it.
const VECTOR: usize = 16;

/// One rank's streams, and the work that it enqueues on them. Spans lie in memory of any rank, whose owner
/// keeps it while it is read.
pub(crate) trait Engine: 'static {
    /// A point in a stream's work, known to all ranks.
    type Event: Send + Sync + 'static;

    /// Memory that the engine moves.
    fn reach(&self) -> Reach;

    /// Records an event after the work enqueued on a stream so far.
    fn record(&self, stream: StreamKind) -> Result<Self::Event>;

    /// Makes later work on a stream wait for an event of any rank, which has been recorded.
    fn wait(&self, event: &Self::Event, stream: StreamKind) -> Result<()>;

    /// Copies a span to a region of the same length, unless it is that region.
    fn copy(&self, from: Span, to: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Sums spans of a region's length, added in tree order, into the region, which may be one of them.
    fn sum(&self, parts: &[Span], to: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()>;

    /// Waits on the host until the work enqueued on a stream so far is done.
    fn synchronize(&self, stream: StreamKind) -> Result<()>;
}

/// Returns a region, which lies inside its buffer, as a span.
pub(crate) fn span_of(region: Region<'_>) -> Span {
    Span { address: region.buffer.address() + region.offset as u64, bytes: region.bytes }
}

/// The engine of a GPU.
#[derive(Debug)]
pub(crate) struct Gpu(pub(crate) Device);

impl Gpu {
    /// Returns the memory of the ranks at these spans: that of the device's own context, which all of them
    /// use.
    fn memory(&self, spans: &[Span]) -> PeerMemory {
        let extent = |span: &Span| Extent { address: span.address, bytes: span.bytes as u64, is_page: false };
        PeerMemory::own(&self.0, &spans.iter().map(extent).collect::<Vec<_>>())
    }
}

fn at(memory: &PeerMemory, span: Span) -> Result<PeerAddress<'_>> {
    let outside = DeviceError::OutOfBounds { start: 0, end: span.bytes, bytes: 0 };
    memory.at(span.address, span.bytes).ok_or(outside)
}

impl Engine for Gpu {
    type Event = SharedEvent;

    fn reach(&self) -> Reach {
        Reach::SharedGpu
    }

    fn record(&self, stream: StreamKind) -> Result<SharedEvent> {
        self.0.record_shared(stream)
    }

    fn wait(&self, event: &SharedEvent, stream: StreamKind) -> Result<()> {
        self.0.wait_shared(stream, event)
    }

    fn copy(&self, from: Span, to: Region<'_>, stream: StreamKind) -> Result<()> {
        if from == span_of(to) || from.bytes == 0 {
            return Ok(());
        }
        let memory = self.memory(&[from]);
        self.0.copy_from_peer(at(&memory, from)?, to, stream)
    }

    fn sum(&self, parts: &[Span], to: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()> {
        let count = parts.len();
        let is_whole = |span: &Span| span.address.is_multiple_of(VECTOR as u64);
        let whole = to.bytes.is_multiple_of(VECTOR) && parts.iter().chain([&span_of(to)]).all(is_whole);
        let memory = self.memory(parts);
        let addresses = parts.iter().map(|part| at(&memory, *part)).collect::<Result<Vec<_>>>()?;
        let multiprocessors = self.0.description().multiprocessors;
        let elements = to.bytes / dtype.bytes();
        let order = SumTree::balanced(count);
        let unsupported = DeviceError::Unsupported { call: "sum over ranks", dtype };
        let (kernel, units, blocks) = if whole {
            let vectors = to.bytes / VECTOR;
            (TreeKernel::find(dtype, &order), vectors, tree::blocks(vectors, count, multiprocessors))
        } else {
            let blocks = tree::element_blocks(elements, multiprocessors);
            (TreeKernel::by_element(dtype, &order), elements, blocks)
        };
        let kernel = kernel.ok_or(unsupported)?;
        let launch = self.0.kernel(kernel.function());
        let launch = addresses.into_iter().fold(launch, |launch, part| launch.peer(part));
        // The sum is written to this rank's memory only.
        let launch = kernel.finish(launch, |launch| launch.write(to), units as u64, 0);
        let bytes = to.bytes * (count + 1);
        let flops = elements * count.saturating_sub(1);
        launch.on(stream).cost(bytes as u64, flops as u64).launch([blocks, 1, 1], tree::THREADS)
    }

    fn synchronize(&self, stream: StreamKind) -> Result<()> {
        self.0.wait_on_host(&self.0.record(stream)?)
    }
}
