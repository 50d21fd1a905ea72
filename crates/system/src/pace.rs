//! Progress intervals for long jobs.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Silence before the first report on file work.
pub const QUIET: Duration = Duration::from_secs(3);
/// Interval between reports on file work.
const INTERVAL: Duration = Duration::from_secs(10);

/// Decides when work reports its progress: never if it finishes soon, else once per interval.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    began: Instant,
    next: Mutex<Instant>,
}

impl Pace {
    /// Returns the pace of reading or writing files, starting now.
    #[must_use]
    pub fn of_files() -> Self {
        Pace::new(QUIET, INTERVAL)
    }

    /// Returns the pace of work that starts now and is silent for `quiet`.
    #[must_use]
    pub fn new(quiet: Duration, interval: Duration) -> Self {
        let began = Instant::now();
        Pace { interval, began, next: Mutex::new(began + quiet) }
    }

    /// Returns whether to report now. If so, it returns false on all threads for the next interval.
    pub fn is_due(&self) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_due = now >= *next;
        if is_due {
            *next = now + self.interval;
        }
        is_due
    }

    /// Returns the time since the work began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_due_after_the_quiet_time_and_once_an_interval() {
        let hour = Duration::from_secs(3600);
        assert!(!Pace::new(hour, Duration::ZERO).is_due());
        let pace = Pace::new(Duration::ZERO, hour);
        assert!(pace.is_due());
        assert!(!pace.is_due());
        let pace = Pace::new(Duration::ZERO, Duration::ZERO);
        assert!(pace.is_due() && pace.is_due());
    }
}
