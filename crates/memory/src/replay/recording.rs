//! Recordings: operations with another allocator's answers and counters.

use std::fmt;

use crate::pool::PoolId;
use crate::raw::Stream;

/// Why a file is no recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The content has neither format.
    #[error("is no recording of an allocator: {0}")]
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
    /// A request; `id` names its block in later operations.
    Allocate {
        /// Counted from 0.
        id: u32,
        /// Bytes asked for.
        bytes: u64,
        /// On which stream.
        stream: Stream,
        /// The allocation, `None` for an out-of-memory error.
        address: Option<u64>,
        /// The first line of that error.
        message: Option<String>,
    },
    /// A block was freed.
    Free(u32),
    /// A block is used on another stream.
    RecordStream(u32, Stream),
    /// All work of a stream is done.
    Finish(Stream),
    /// Everything idle goes back to the driver.
    EmptyCache,
    /// `empty_cache` for one private pool.
    FlushPool(PoolId),
    /// Peaks become current.
    ResetPeak,
    /// Sums become 0.
    ResetAccumulated,
    /// Settings change.
    Configure(String),
    /// The limit becomes a share of the device.
    MemoryFraction(f64),
    /// Others have so many bytes of the device.
    Others(u64),
    /// A private pool is opened, for one stream or all.
    BeginPool(PoolId, Option<Stream>),
    /// The pool is closed.
    EndPool(PoolId),
    /// A user of the pool is removed.
    ReleasePool(PoolId),
    /// Blocks of the pool are not split.
    NoSplit(PoolId),
}

/// An operation with every counter after it, in the order of [`Recording::keys`].
#[derive(Clone, Debug)]
pub struct Step {
    /// The operation.
    pub operation: Operation,
    /// The counters after it.
    pub counters: Vec<i64>,
}

/// Memory that the recorded allocator took from its driver or returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEvent {
    /// `segment_alloc`, `segment_free`, `segment_map` or `segment_unmap`.
    pub action: String,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// On which stream.
    pub stream: Stream,
}

/// A segment at the end of a recording, its blocks as (size, requested, state).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalSegment {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub total_size: u64,
    /// Bytes of allocated blocks.
    pub allocated_size: u64,
    /// Bytes of active blocks.
    pub active_size: u64,
    /// Bytes asked for by the active blocks' owners.
    pub requested_size: u64,
    /// Stream of the segment.
    pub stream: Stream,
    /// The segment belongs to a large pool.
    pub large: bool,
    /// Expandable.
    pub expandable: bool,
    /// Pool of the segment; absent from traces.
    pub pool: Option<PoolId>,
    /// Blocks of the segment.
    pub blocks: Vec<(u64, u64, char)>,
}

/// A sequence of operations with what another allocator made of them.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Name of the recording.
    pub name: String,
    /// The settings it starts with.
    pub settings: String,
    /// The limit it starts with, as a share of the device.
    pub limit_fraction: Option<f64>,
    /// The limit it starts with in bytes, where no share is said.
    pub limit_bytes: Option<u64>,
    /// All of the device, in bytes.
    pub total: u64,
    /// Which counters were recorded.
    pub keys: Vec<String>,
    /// Their values before the first operation.
    pub initial: Vec<i64>,
    /// The operations.
    pub steps: Vec<Step>,
    /// Events between allocator and driver; `None` for the stand-in driver.
    pub segment_events: Option<Vec<SegmentEvent>>,
    /// The segments after the last operation, in address order, where they were recorded.
    pub final_segments: Option<Vec<FinalSegment>>,
    /// Number of blocks that the operations name.
    pub blocks: u32,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Allocate { id, bytes, stream, .. } => {
                write!(f, "allocation {id} of {bytes} bytes on stream {}", stream.0)
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
            Operation::Others(bytes) => write!(f, "{bytes} bytes of the device for others"),
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
        write!(f, "{action} of {bytes} bytes at {address:#x} on stream {}", stream.0)
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
