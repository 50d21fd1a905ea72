//! Points at which a test can pause or delay a process, in order to kill it there.
//!
//! A kill between two particular operations cannot be timed. If the environment variable [`VARIABLE`] is set
//! to `POINT:COUNT:FILE`, the thread that reaches the point for the `COUNT`-th time creates `FILE` and waits
//! until the process is killed or `FILE` is removed. If [`SLOW`] is set to `POINT:MILLISECONDS`, every thread
//! that reaches the point sleeps for that time, as with a slow disk.
//!
//! If [`FLIP`] is set to `RANK:STEP:RUNS:RESULT:BIT`, a rank inverts a bit of an operator's result in a
//! verified step, as faulty hardware would: see [`Flip`].

use std::fs::File;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Environment variable with the point to pause at.
pub const VARIABLE: &str = "PLIMSOLL_HOLD";

/// Environment variable with a point and its delay.
pub const SLOW: &str = "PLIMSOLL_SLOW";

/// Environment variable with the bit to invert.
pub const FLIP: &str = "PLIMSOLL_FLIP";

/// Interval at which a paused thread checks whether to continue.
const LOOK: Duration = Duration::from_millis(5);

struct Hold {
    point: String,
    count: u64,
    file: PathBuf,
}

/// A bit to invert in an operator's result in a verified micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// The rank that inverts it.
    pub rank: usize,
    /// The step, from 1.
    pub step: u64,
    /// Name of the execution of the micro-batch in which the bit is inverted; `all` for every one.
    pub runs: String,
    /// Index of the result within the execution, in order of computation.
    pub result: usize,
    /// Index of the bit, modulo the number of bits in the result.
    pub bit: usize,
}

/// Returns the bit in [`FLIP`], if set.
pub fn flip() -> Option<Flip> {
    parse_flip(&std::env::var(FLIP).ok()?)
}

fn parse_flip(text: &str) -> Option<Flip> {
    let mut parts = text.split(':');
    let rank = parts.next()?.parse().ok()?;
    let step = parts.next()?.parse().ok()?;
    let runs = parts.next()?.to_owned();
    let result = parts.next()?.parse().ok()?;
    Some(Flip { rank, step, runs, result, bit: parts.next()?.parse().ok()? })
}

/// Marks a point in a thread's work, named after the operation just completed.
pub fn reach(point: &str) {
    static HOLD: LazyLock<Option<Hold>> = LazyLock::new(|| parse(&std::env::var(VARIABLE).ok()?));
    static SLOWED: LazyLock<Option<(String, Duration)>> = LazyLock::new(|| slow(&std::env::var(SLOW).ok()?));
    static REACHED: AtomicU64 = AtomicU64::new(0);
    if let Some((_, delay)) = SLOWED.as_ref().filter(|(slow, _)| slow == point) {
        std::thread::sleep(*delay);
    }
    let Some(hold) = HOLD.as_ref().filter(|hold| hold.point == point) else { return };
    if REACHED.fetch_add(1, Ordering::Relaxed) + 1 == hold.count && File::create_new(&hold.file).is_ok() {
        while hold.file.exists() {
            std::thread::sleep(LOOK);
        }
    }
}

fn parse(text: &str) -> Option<Hold> {
    let mut parts = text.splitn(3, ':');
    let point = parts.next()?.to_owned();
    let count = parts.next()?.parse().ok()?;
    let file = parts.next()?.into();
    Some(Hold { point, count, file })
}

fn slow(text: &str) -> Option<(String, Duration)> {
    let (point, milliseconds) = text.split_once(':')?;
    Some((point.to_owned(), Duration::from_millis(milliseconds.parse().ok()?)))
}
