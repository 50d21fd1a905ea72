//! Replays of recordings: another allocator's operations, with its answers and all its counters after each.
//!
//! Two formats are read, plain or gzip-compressed, told apart by their content:
//!
//! * a **trace** of PyTorch's allocator on a GPU: one JSON object with `ops`, and with `segment_events`, what
//!   it took from the driver and gave back. The replay's driver hands out the recorded addresses in that
//!   order; a request that the recording does not show is a mismatch;
//! * **vectors**: lines of JSON, each a script of operations over a stand-in driver
//!   ([`Counting`](crate::drivers::Counting)), private pools and changes of settings included.
//!
//! ```no_run
//! let report = memory::replay::replay("default_mixed.json.gz".as_ref())?;
//! assert_eq!(report.mismatches, 0, "{:?}", report.first);
//! # Ok::<(), memory::replay::RecordingError>(())
//! ```

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::pool::PoolId;
use crate::raw::Stream;

mod check;
mod fields;
mod player;
mod recorded;
mod trace;
mod vectors;

pub use check::Report;
pub use player::{Driver, Player};
pub use recorded::Recorded;

/// The most bytes that a file may unpack to: 2 GiB.
const MAX_BYTES: u64 = 2 << 30;

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
    pub(crate) fn format(problem: impl Into<String>) -> RecordingError {
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

/// Reads every recording in a file.
///
/// # Errors
/// [`RecordingError`] for a file that cannot be read or is no recording.
pub fn read(path: &Path) -> Result<Vec<Recording>, RecordingError> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    parse(&bytes)
}

/// Reads every recording in the content of a file.
///
/// # Errors
/// [`RecordingError::Format`] for what is no recording.
pub fn parse(bytes: &[u8]) -> Result<Vec<Recording>, RecordingError> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        let unpacked = flate2::read::MultiGzDecoder::new(bytes).take(MAX_BYTES).read_to_end(&mut plain);
        unpacked.map_err(|e| RecordingError::format(format!("it does not unpack: {e}")))?;
        return parse_text(&plain);
    }
    parse_text(bytes)
}

fn parse_text(bytes: &[u8]) -> Result<Vec<Recording>, RecordingError> {
    let text = std::str::from_utf8(bytes).map_err(|_| RecordingError::format("it is not text"))?;
    // A trace is one object, on one line or many; of vectors there is an object on each line.
    let first = text.lines().find(|line| !line.trim().is_empty());
    let first = first.ok_or_else(|| RecordingError::format("it is empty"))?;
    match serde_json::from_str::<serde_json::Value>(first) {
        Ok(object) if object.get("device_total").is_some() => vectors::parse(text),
        Ok(object) if object.get("stat_names").is_some() => trace::parse(&object).map(|r| vec![r]),
        _ => {
            let object = serde_json::from_str(text).map_err(|e| RecordingError::format(e.to_string()))?;
            trace::parse(&object).map(|r| vec![r])
        }
    }
}

/// Replays every recording of a file and compares all that was recorded.
///
/// # Errors
/// [`RecordingError`] for a file that cannot be read or is no recording. A replay that differs is no error:
/// the report says how.
pub fn replay(path: &Path) -> Result<Report, RecordingError> {
    let mut total = Report::default();
    for recording in read(path)? {
        total.add(check::check(&recording));
    }
    Ok(total)
}

/// Reads a recording from content in memory.
///
/// # Errors
/// As for [`parse`].
pub fn replay_bytes(bytes: &[u8]) -> Result<Report, RecordingError> {
    let mut total = Report::default();
    for recording in parse(bytes)? {
        total.add(check::check(&recording));
    }
    Ok(total)
}
