//! One rank's work in the memory of all ranks that share its GPU.

use device::cuda::{Extent, PeerAddress, PeerMemory};
use device::{DType, Device, DeviceError, Region, Result, SharedEvent, StreamKind};
use tensor::ops::tree::{self, SumTree, TreeKernel};

use super::offers::Span;
use crate::collective::Reach;

/// Bytes of a vector; kernels move vectors if all addresses are aligned.
const VECTOR: usize = 16;

/// One rank's streams, and the work enqueued on them. Spans may be memory of any rank, whose owner keeps it
/// until it is read.
pub(crate) trait Engine: 'static {
    /// A point in a stream's work, visible to all ranks.
    type Event: Send + Sync + 'static;

    /// Kind of memory that the engine moves.
    fn reach(&self) -> Reach;

    /// Records an event after the work enqueued on a stream so far.
    fn record(&self, stream: StreamKind) -> Result<Self::Event>;

    /// Makes later work on a stream wait for an event that any rank has recorded.
    fn wait(&self, event: &Self::Event, stream: StreamKind) -> Result<()>;

    /// Copies a span to a region of the same length; does nothing if they are the same memory.
    fn copy(&self, from: Span, to: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Sums spans in tree order into a region of the same length, which may be one of the spans.
    fn sum(&self, parts: &[Span], to: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()>;

    /// Waits on the host until the work enqueued on a stream so far is done.
    fn synchronize(&self, stream: StreamKind) -> Result<()>;
}

/// Returns the address range of a region.
pub(crate) fn span_of(region: Region<'_>) -> Span {
    Span { address: region.buffer.address() + region.offset as u64, bytes: region.bytes }
}

/// The engine of a real GPU.
#[derive(Debug)]
pub(crate) struct Gpu(pub(crate) Device);

impl Gpu {
    /// Returns access to these spans through the device's context, which all ranks share.
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
