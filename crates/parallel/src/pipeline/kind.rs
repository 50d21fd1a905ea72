//! The kinds of schedules, by name.

use std::fmt;
use std::str::FromStr;

system::names! {
    /// A kind of pipeline schedule.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ScheduleKind {
        /// All forward passes, then all backward passes (Huang and others, *GPipe*, 2019); backward is
        /// first-in-first-out here.
        GPipe = "gpipe",
        /// One forward, one backward (Narayanan and others, *PipeDream-Flush*, 2021).
        OneForwardOneBackward = "1f1b",
        /// 1F1B with several model chunks per rank (Narayanan and others, *Megatron-LM*, 2021).
        Interleaved = "interleaved",
        /// ZB-H1 (Qi and others, *Zero Bubble Pipeline Parallelism*, 2023).
        ZeroBubble = "zero-bubble",
    }
}

/// Error: no kind of schedule has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a schedule: gpipe, 1f1b, interleaved and zero-bubble are")]
pub struct UnknownSchedule(pub String);

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ScheduleKind {
    type Err = UnknownSchedule;

    fn from_str(name: &str) -> Result<Self, UnknownSchedule> {
        let kind = ScheduleKind::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| UnknownSchedule(name.to_owned()))
    }
}
