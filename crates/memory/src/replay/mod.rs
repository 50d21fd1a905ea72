//! Replays of recordings: the operations of another allocator, with their results and all counters after each
//! operation.
//!
//! Two formats are read, plain or gzip-compressed, and distinguished by their content:
//!
//! * a **trace** of PyTorch's allocator on a GPU: one JSON object with `ops` and `segment_events`, the
//!   segments that it took from the driver and returned. The replay's driver hands out the recorded addresses
//!   in that order; a request that the recording does not have is a mismatch;
//! * **vectors**: lines of JSON, each a script of operations over a simulated driver
//!   ([`Counting`](crate::drivers::Counting)), including private pools and changes of settings.
//!
//! ```no_run
//! let report = memory::replay::replay("default_mixed.json.gz".as_ref())?;
//! assert_eq!(report.mismatches, 0, "{:?}", report.first);
//! # Ok::<(), memory::replay::RecordingError>(())
//! ```

use std::path::Path;

use system::input;

mod check;
mod fields;
mod player;
mod recorded;
mod recording;
mod trace;
mod vectors;

pub use check::Report;
pub use player::{Driver, Player};
pub use recorded::Recorded;
pub use recording::{FinalSegment, Operation, Recording, RecordingError, SegmentEvent, Step};

/// Maximum bytes of a file, packed and unpacked.
const MOST_BYTES: u64 = 256 << 20;
/// Maximum number of values in a file's JSON. Each takes about 32 bytes while the file is parsed.
const MOST_VALUES: usize = 8 << 20;

/// Reads all recordings in a file.
///
/// # Errors
/// [`RecordingError`] for a file that cannot be read or is not a recording.
pub fn read(path: &Path) -> Result<Vec<Recording>, RecordingError> {
    parse(&input::read(path, MOST_BYTES)?)
}

/// Reads all recordings in the content of a file.
///
/// # Errors
/// [`RecordingError::Format`] for content that is not a recording.
pub fn parse(bytes: &[u8]) -> Result<Vec<Recording>, RecordingError> {
    let plain = input::unpack(bytes, MOST_BYTES);
    parse_text(&plain.map_err(|e| RecordingError::format(format!("it does not unpack: {e}")))?)
}

fn parse_text(bytes: &[u8]) -> Result<Vec<Recording>, RecordingError> {
    let text = std::str::from_utf8(bytes).map_err(|_| RecordingError::format("it is not text"))?;
    // Every value but the outermost follows one of these characters, so their number bounds the values.
    let values = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if values > MOST_VALUES {
        let text = format!("it has more than {MOST_VALUES} values, which is the limit");
        return Err(RecordingError::format(text));
    }
    // A trace is one object, on one line or many; vectors have one object on each line.
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

/// Replays all recordings of a file and compares every recorded result and counter.
///
/// # Errors
/// [`RecordingError`] for a file that cannot be read or is not a recording. A replay that differs is not an
/// error: the report describes the difference.
pub fn replay(path: &Path) -> Result<Report, RecordingError> {
    let mut total = Report::default();
    for recording in read(path)? {
        total.add(check::check(&recording));
    }
    Ok(total)
}

/// Replays the recordings in the content of a file.
pub fn replay_bytes(bytes: &[u8]) -> Result<Report, RecordingError> {
    let mut total = Report::default();
    for recording in parse(bytes)? {
        total.add(check::check(&recording));
    }
    Ok(total)
}
