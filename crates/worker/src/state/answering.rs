//! Waiting for a disk while answering the other ranks, which take a silent rank for dead.

use std::time::{Duration, Instant};

use collective::ControlChannel;

use crate::error::Result;

/// The shortest and the longest time between two answers.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(100)];

/// Returns when `is_done` on all ranks, which all call this.
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

/// The answers of a rank between the pieces of work that waits for a disk. All ranks have some, and end them
/// with [`Answers::finish`].
pub(crate) struct Answers<'a> {
    control: &'a mut dyn ControlChannel,
    last: Instant,
    failed: Result<()>,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(control: &'a mut dyn ControlChannel) -> Self {
        Answers { control, last: Instant::now(), failed: Ok(()) }
    }

    /// Answers the others, if the last answer was some time ago. Its error is that of the end.
    pub(crate) fn answer(&mut self) {
        if self.last.elapsed() >= PAUSES[1] && self.failed.is_ok() {
            self.failed = are_all_done(self.control, false).map(|_| ());
            self.last = Instant::now();
        }
    }

    /// Returns when all ranks call this.
    pub(crate) fn finish(self) -> Result<()> {
        self.failed?;
        wait_together(self.control, &mut || true)
    }
}
