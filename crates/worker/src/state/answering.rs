//! Answers to other ranks during a wait for a disk, so that this rank is not considered dead.

use std::time::{Duration, Instant};

use collective::ControlChannel;

use crate::error::Result;

/// Minimum and maximum time between two answers.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(100)];

/// Returns once `is_done` returns true on all ranks. Every rank must call this.
pub fn wait_together(control: &mut dyn ControlChannel, is_done: &mut dyn FnMut() -> bool) -> Result<()> {
    let mut pause = PAUSES[0];
    while !are_all_done(control, is_done())? {
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSES[1]);
    }
    Ok(())
}

fn are_all_done(control: &mut dyn ControlChannel, own: bool) -> Result<bool> {
    let all = control.all_gather(&[u8::from(own)])?;
    Ok(all.iter().all(|done| done.first() == Some(&1)))
}

/// Answers other ranks between pieces of disk work. All ranks must create one, and end with
/// [`Answers::finish`].
pub(crate) struct Answers<'a> {
    control: &'a mut dyn ControlChannel,
    last: Instant,
    failed: Result<()>,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(control: &'a mut dyn ControlChannel) -> Self {
        Answers { control, last: Instant::now(), failed: Ok(()) }
    }

    /// Answers the other ranks, if the last answer is old enough. An error is returned by
    /// [`Answers::finish`].
    pub(crate) fn answer(&mut self) {
        if self.last.elapsed() >= PAUSES[1] && self.failed.is_ok() {
            self.failed = are_all_done(self.control, false).map(|_| ());
            self.last = Instant::now();
        }
    }

    /// Returns once all ranks have called this.
    pub(crate) fn finish(self) -> Result<()> {
        self.failed?;
        wait_together(self.control, &mut || true)
    }
}
