//! Pipeline parallelism: a model's stages on several ranks, with micro-batches in flight.
//!
//! The one idea: **a schedule is data.** A generator writes down, rank by rank, what is done in which order
//! ([`Schedule`]); [`validate`] proves it sound, [`simulate`] says how long it takes and where it waits, [`loads`] what
//! it holds, and [`text`] and [`svg`] draw it. None of this needs a device or a model. [`Executor`] only walks the lists.
//!
//! All of them run the backward passes of a stage in increasing micro-batch order, weights included: gradients add up
//! in that order, so every schedule gives the same bits.
//!
//! ```
//! use parallel::pipeline::{ActionTimes, Schedule, ScheduleKind, Shape, simulate, text, validate};
//! let shape = Shape { ranks: 2, chunks: 1, micro_batches: 3 };
//! let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, shape)?;
//! validate(&schedule)?;
//! let timeline = simulate(&schedule, &ActionTimes::equal(schedule.stages, [2, 1, 1], 0))?;
//! assert_eq!(timeline.makespan, 16); // (3 + 2 − 1) micro-batches of 4
//! assert_eq!(timeline.bubble(), 0.25);
//! println!("{}", text(&schedule, &timeline, 1));
//! # Ok::<(), parallel::pipeline::ScheduleError>(())
//! ```

mod action;
mod communication;
mod deadlock;
mod division;
mod error;
mod executor;
mod gpipe;
mod interleaved;
mod load;
mod one_f_one_b;
mod picture;
mod schedule;
mod sharing;
mod simulate;
mod validate;
mod zero_bubble;

pub use action::{Action, ActionKind};
pub use deadlock::{Sends, Stuck, deadlock};
pub use division::{Division, DivisionError, LayerBytes, LayerCosts, PartBytes};
pub use error::{Result, ScheduleError};
pub use executor::{Crossing, Executor, Feed, Part, Planes, StagePart};
pub use load::{Held, Load, Loads, loads};
pub use picture::{svg, text};
pub use schedule::{Schedule, ScheduleKind, Shape};
pub use sharing::{add_tied, share_from_last, stage_uses};
pub use simulate::{ActionTimes, Span, StageTimes, Timeline, simulate};
pub use validate::{Report, validate};
