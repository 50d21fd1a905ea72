//! Recordings: operations of another allocator, with their results and its counters.

use std::fmt;

use system::numbers::grouped;

use crate::pool::PoolId;
use crate::raw::Stream;

/// Reason why a file cannot be used as a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The content is neither a trace nor vectors.
    #[error("is not a recording of an allocator: {0}")]
    Format(String),
}

impl RecordingError {
    pub(super) fn format(problem: impl Into<String>) -> RecordingError {
        RecordingError::Format(problem.into())
    }
}

/// One operation of a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// A block was requested; later operations refer to it by `id`.
    Allocate {
        /// Number of the block, counted from 0.
        id: u32,
        /// Requested bytes.
        bytes: u64,
        /// Stream of the request.
        stream: Stream,
        /// Address of the block; `None` for an out-of-memory error.
        address: Option<u64>,
        /// First line of the error message.
        message: Option<String>,
    },
    /// The block was freed.
    Free(u32),
    /// The block was used on another stream.
    RecordStream(u32, Stream),
    /// All work of the stream finished.
    Finish(Stream),
    /// All idle memory was returned to the driver.
    EmptyCache,
    /// `empty_cache` for one private pool.
    FlushPool(PoolId),
    /// Peaks were reset to the current values.
    ResetPeak,
    /// Sums were reset to 0.
    ResetAccumulated,
    /// Settings were changed.
    Configure(String),
    /// The limit was set to a fraction of the device.
    MemoryFraction(f64),
    /// The number of bytes that other processes use was changed.
    Others(u64),
    /// A private pool was opened, for one stream or for all.
    BeginPool(PoolId, Option<Stream>),
    /// The pool was closed.
    EndPool(PoolId),
    /// A user of the pool was removed.
    ReleasePool(PoolId),
    /// Splitting of the pool's blocks was disabled.
    NoSplit(PoolId),
}

/// An operation and all counters after it, in the order of [`Recording::keys`].
#[derive(Clone, Debug)]
pub struct Step {
    /// The operation.
    pub operation: Operation,
    /// Values of the counters after the operation, in the order of [`Recording::keys`].
    pub counters: Vec<i64>,
}

/// Memory that the recorded allocator took from its driver or returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEvent {
    /// Kind of the event: `segment_alloc`, `segment_free`, `segment_map` or `segment_unmap`.
    pub action: String,
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Stream of the event.
    pub stream: Stream,
}

/// A segment at the end of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalSegment {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub total_size: u64,
    /// Bytes of allocated blocks.
    pub allocated_size: u64,
    /// Bytes of active blocks.
    pub active_size: u64,
    /// Bytes requested by the owners of the active blocks.
    pub requested_size: u64,
    /// Stream of the segment.
    pub stream: Stream,
    /// Whether the segment belongs to a large pool.
    pub large: bool,
    /// Whether the segment is expandable.
    pub expandable: bool,
    /// Pool of the segment; absent from traces.
    pub pool: Option<PoolId>,
    /// Blocks of the segment: (size, requested bytes, state).
    pub blocks: Vec<(u64, u64, char)>,
}

/// A sequence of operations with the results of the recorded allocator.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Name of the recording.
    pub name: String,
    /// The initial settings, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: String,
    /// The initial limit, as a fraction of the device.
    pub limit_fraction: Option<f64>,
    /// The initial limit in bytes, if no fraction was recorded.
    pub limit_bytes: Option<u64>,
    /// Capacity of the device in bytes.
    pub total: u64,
    /// Keys of the recorded counters.
    pub keys: Vec<String>,
    /// Values of the counters before the first operation.
    pub initial: Vec<i64>,
    /// The operations, with the counters after each.
    pub steps: Vec<Step>,
    /// Calls between allocator and driver; `None` for the simulated driver.
    pub segment_events: Option<Vec<SegmentEvent>>,
    /// The segments after the last operation, in address order; `None` if not recorded.
    pub final_segments: Option<Vec<FinalSegment>>,
    /// Number of blocks that the operations refer to.
    pub blocks: u32,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Allocate { id, bytes, stream, .. } => {
                write!(f, "allocation {id} of {} bytes on stream {}", grouped(*bytes), stream.0)
            }
            Operation::Free(id) => write!(f, "free of allocation {id}"),
            Operation::RecordStream(id, stream) => {
                write!(f, "use of allocation {id} on stream {}", stream.0)
            }
            Operation::Finish(stream) => write!(f, "end of the work of stream {}", stream.0),
            Operation::EmptyCache => write!(f, "empty_cache"),
            Operation::FlushPool(pool) => write!(f, "empty_cache of pool {pool}"),
            Operation::ResetPeak => write!(f, "reset of peaks"),
            Operation::ResetAccumulated => write!(f, "reset of sums"),
            Operation::Configure(settings) => write!(f, "settings {settings}"),
            Operation::MemoryFraction(share) => write!(f, "limit of {share} of the device"),
            Operation::Others(bytes) => write!(f, "{} bytes of the device for others", grouped(*bytes)),
            Operation::BeginPool(pool, _) => write!(f, "begin of pool {pool}"),
            Operation::EndPool(pool) => write!(f, "end of pool {pool}"),
            Operation::ReleasePool(pool) => write!(f, "release of pool {pool}"),
            Operation::NoSplit(pool) => write!(f, "no splits in pool {pool}"),
        }
    }
}

impl fmt::Display for SegmentEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SegmentEvent { action, address, bytes, stream } = self;
        write!(f, "{action} of {} bytes at {address:#x} on stream {}", grouped(*bytes), stream.0)
    }
}

impl fmt::Display for FinalSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FinalSegment { address, total_size, allocated_size, active_size, requested_size, .. } = self;
        write!(
            f,
            "at {address:#x}, {total_size} bytes, {allocated_size} allocated, {active_size} active, \
             {requested_size} requested, {} blocks",
            self.blocks.len()
        )
    }
}
