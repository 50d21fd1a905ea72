//! The keys of `[checkpoint]`.

use keys::{Interval, Row, section};

use super::MOST;

section! {
    /// `[checkpoint]`: what is saved during a run.
    pub struct Checkpoint = "checkpoint" {
        /// Steps between checkpoints; 0: by time only. There is one after the last step, also of a run that
        /// is stopped, unless `minutes` is 0 too: then nothing is kept.
        every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Minutes of training between checkpoints; 0: by steps only.
        minutes: f64 = Row::number(Interval::NotNegative).default("10").any_bits();
        /// Whether training waits for the last checkpoint where the next one is due, so that none is late;
        /// without it, the next one is put off until the last one is on the disk.
        wait: bool = Row::flag().default("false").any_bits();
        /// Checkpoints that are kept, the latest.
        keep: u64 = Row::integer(1, MOST).default("2").any_bits();
        /// Steps between states that are kept in host memory, where no disk is waited for; 0: none. A job
        /// that is restarted (`launch/mpirun --restarts`) goes on from the newest one that the hosts which
        /// answer have together, or else from the newest checkpoint. Without restarts it has no effect.
        memory_steps: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Also save and keep the state with the lowest validation loss, as `checkpoints/best`: one
        /// checkpoint beside the latest, unless it is among them.
        keep_best: bool = Row::flag().default("false").any_bits();
    }
}

impl Checkpoint {
    /// Returns whether a run keeps checkpoints.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.every > 0 || self.minutes > 0.0
    }
}
