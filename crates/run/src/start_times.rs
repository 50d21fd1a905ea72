//! Durations of the parts of a rank's start-up.

use std::time::{Duration, Instant};

/// Parts of a start-up shorter than this are counted in the total only.
const NAMED: Duration = Duration::from_millis(5);

/// Measures the consecutive parts of a start-up.
#[derive(Debug)]
pub(crate) struct StartTimes {
    began: Instant,
    last: Instant,
    parts: Vec<(&'static str, Duration)>,
}

impl StartTimes {
    /// Starts to measure the first part.
    pub(crate) fn begin() -> Self {
        let now = Instant::now();
        StartTimes { began: now, last: now, parts: Vec::new() }
    }

    /// Records the time since the previous call as that of `part`.
    pub(crate) fn end(&mut self, part: &'static str) {
        let last = std::mem::replace(&mut self.last, Instant::now());
        self.parts.push((part, last.elapsed()));
    }

    /// Formats the total time with its parts, as in `0.94 s: device 0.31 s, model 0.63 s`.
    pub(crate) fn in_words(&self) -> String {
        let named = self.parts.iter().filter(|(_, time)| *time >= NAMED);
        let parts: Vec<String> =
            named.map(|(part, time)| format!("{part} {:.2} s", time.as_secs_f64())).collect();
        let whole = format!("{:.2} s", (self.last - self.began).as_secs_f64());
        if parts.is_empty() { whole } else { format!("{whole}: {}", parts.join(", ")) }
    }
}
