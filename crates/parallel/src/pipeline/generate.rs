//! Generates schedules by kind and shape.

use system::numbers::grouped;

use crate::pipeline::error::{Result, ScheduleError};
use crate::pipeline::kind::ScheduleKind;
use crate::pipeline::schedule::Schedule;
use crate::pipeline::shape::Shape;
use crate::pipeline::{communication, gpipe, interleaved, one_f_one_b, zero_bubble};

/// Maximum number of forward passes per step in a pipeline; their action lists take about 100 MB.
const MOST_PASSES: usize = 1 << 18;

impl Schedule {
    /// Generates the schedule of a kind and shape.
    ///
    /// # Errors
    /// The shape contains a zero; several chunks per rank unless the kind is interleaved; an interleaved
    /// schedule whose micro-batches are not a multiple of its ranks; more passes than a list can hold.
    pub fn new(kind: ScheduleKind, shape: Shape) -> Result<Self> {
        Self::check(kind, shape)?;
        let Shape { ranks, chunks, micro_batches } = shape;
        let order = |rank| match kind {
            ScheduleKind::GPipe => gpipe::order(rank, micro_batches),
            ScheduleKind::OneForwardOneBackward => one_f_one_b::order(ranks, rank, micro_batches),
            ScheduleKind::Interleaved => interleaved::order(shape, rank),
            ScheduleKind::ZeroBubble => zero_bubble::order(ranks, rank, micro_batches),
        };
        let actions = (0..ranks).map(order).collect();
        let mut schedule = Schedule { kind, ranks, stages: ranks * chunks, micro_batches, actions };
        schedule.actions = communication::weave(&schedule);
        Ok(schedule)
    }

    /// Checks a kind and shape without generating the schedule.
    pub fn check(kind: ScheduleKind, shape: Shape) -> Result<()> {
        let Shape { ranks, chunks, micro_batches } = shape;
        let refuse = |reason: String| Err(ScheduleError::Shape { kind, reason });
        if ranks == 0 || chunks == 0 || micro_batches == 0 {
            return refuse(format!(
                "{ranks} ranks with {chunks} stages each and {micro_batches} micro-batches: \
                 there is nothing to schedule"
            ));
        }
        let passes = ranks.saturating_mul(chunks).saturating_mul(micro_batches);
        if ranks > 1 && passes > MOST_PASSES {
            return refuse(format!(
                "{} micro-batches through {} stages are {} forward passes, and a list of them holds at most {}: \
                 use fewer, larger micro-batches",
                grouped(micro_batches as u64),
                grouped(ranks.saturating_mul(chunks) as u64),
                grouped(passes as u64),
                grouped(MOST_PASSES as u64)
            ));
        }
        match kind {
            ScheduleKind::Interleaved if !micro_batches.is_multiple_of(ranks) => {
                refuse(format!("{micro_batches} micro-batches are not a multiple of {ranks} ranks"))
            }
            ScheduleKind::Interleaved => Ok(()),
            _ if chunks > 1 => {
                refuse(format!("{chunks} stages per rank: only interleaved has more than one"))
            }
            _ => Ok(()),
        }
    }
}
