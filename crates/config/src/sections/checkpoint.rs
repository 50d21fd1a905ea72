//! The keys of `[checkpoint]`.

use keys::{Interval, Row, section};

use super::MOST;

section! {
    /// `[checkpoint]`: which states a run saves.
    pub struct Checkpoint = "checkpoint" {
        /// Steps between checkpoints; 0: by time only. The last step is also saved, even in a run that is
        /// stopped, unless `minutes` is 0 too: then no checkpoints are kept.
        every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Minutes of training between checkpoints; 0: by steps only.
        minutes: f64 = Row::number(Interval::NotNegative).default("10").any_bits();
        /// If the last checkpoint is still being written when the next one is due: wait for it (true), or
        /// delay the next one and continue training (false).
        wait: bool = Row::flag().default("false").any_bits();
        /// Number of latest checkpoints to keep.
        keep: u64 = Row::integer(1, MOST).default("2").any_bits();
        /// Steps between states kept in host memory, which wait for no disk; 0: none. A job that is restarted
        /// (`launch/mpirun --restarts`) continues from the newest state that the answering hosts hold
        /// together, or else from the newest checkpoint. Without restarts the key has no effect.
        memory_steps: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Also keep the state with the lowest validation loss, as `checkpoints/best`, in addition to the
        /// latest checkpoints.
        keep_best: bool = Row::flag().default("false").any_bits();
    }
}

impl Checkpoint {
    /// Returns whether a run keeps checkpoints by steps or time.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.every > 0 || self.minutes > 0.0
    }
}
