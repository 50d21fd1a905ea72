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

/// The most bytes of a file, and those that it may unpack to.
const MOST_BYTES: u64 = 256 << 20;
/// The most values in the JSON of a file: each takes some 32 bytes until it is a recording.
const MOST_VALUES: usize = 8 << 20;

/// Reads every recording in a file.
///
/// # Errors
/// [`RecordingError`] for a file that cannot be read or is no recording.
pub fn read(path: &Path) -> Result<Vec<Recording>, RecordingError> {
    parse(&input::read(path, MOST_BYTES)?)
}

/// Reads every recording in the content of a file.
///
/// # Errors
/// [`RecordingError::Format`] for what is no recording.
pub fn parse(bytes: &[u8]) -> Result<Vec<Recording>, RecordingError> {
    let plain = input::unpack(bytes, MOST_BYTES);
    parse_text(&plain.map_err(|e| RecordingError::format(format!("it does not unpack: {e}")))?)
}

fn parse_text(bytes: &[u8]) -> Result<Vec<Recording>, RecordingError> {
    let text = std::str::from_utf8(bytes).map_err(|_| RecordingError::format("it is not text"))?;
    // Values that are none of these are few: an object's or a list's first.
    let values = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if values > MOST_VALUES {
        let text = format!("it has more than {MOST_VALUES} values, which is the limit");
        return Err(RecordingError::format(text));
    }
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
