//! Points at which a test can stop or delay a process, to kill it there.
//!
//! A kill between two particular operations cannot be timed. With the environment variable [`VARIABLE`] set
//! to `POINT:COUNT:FILE`, the thread that reaches the point for the `COUNT`-th time creates `FILE` and waits
//! there until the process is killed or `FILE` is removed. With [`SLOW`] set to `POINT:MILLISECONDS`, every
//! thread that reaches the point sleeps for that time, as with a slow disk.

use std::fs::File;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The environment variable that names the point.
pub const VARIABLE: &str = "PLIMSOLL_HOLD";

/// The environment variable that names a point and its delay.
pub const SLOW: &str = "PLIMSOLL_SLOW";

/// Interval at which a held thread looks whether it may go on.
const LOOK: Duration = Duration::from_millis(5);

/// The point at which to wait.
struct Hold {
    point: String,
    count: u64,
    file: PathBuf,
}

/// Marks a point in a thread's work, named after the operation just done.
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
    let (point, count, file) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?, parts.next()?.into());
    Some(Hold { point, count, file })
}

fn slow(text: &str) -> Option<(String, Duration)> {
    let (point, milliseconds) = text.split_once(':')?;
    Some((point.to_owned(), Duration::from_millis(milliseconds.parse().ok()?)))
}
