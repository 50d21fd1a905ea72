//! Parsers of arguments shared by several commands.

use std::time::Duration;

/// Largest accepted count or size.
const MOST: u32 = 1 << 24;
/// Longest accepted duration.
const LONGEST: Duration = Duration::from_secs(3600);

/// Parses a count or size of at least 1.
pub(crate) fn count<T: TryFrom<u32>>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST).contains(number));
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| format!("not a number from 1 to {MOST}"))
}

/// Parses a duration in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|time| *time <= LONGEST)
        .ok_or_else(|| format!("not a number of seconds from 0 to {}", LONGEST.as_secs()))
}
