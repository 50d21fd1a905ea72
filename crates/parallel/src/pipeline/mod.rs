//! Pipeline parallelism: the stages of a model on several ranks, with several micro-batches in flight.
//!
//! The one idea: **a schedule is data.** A generator lists the actions of every rank in order ([`Schedule`]).
//! [`validate`] proves the lists correct, [`simulate`] computes their times and idle time, [`loads`] counts
//! the micro-batches held, and [`text`] and [`svg`] draw the schedule. None of this needs a device or a
//! model. [`Executor`] executes the lists.
//!
//! Every schedule runs the backward passes of a stage in increasing micro-batch order, including weight
//! gradients. Gradients are added in that order, so every schedule gives the same bits.
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

mod across_stages;
mod action;
mod communication;
mod deadlock;
mod error;
mod executor;
mod generate;
mod gpipe;
mod interleaved;
mod kind;
mod layout;
mod load;
mod one_f_one_b;
mod partition;
mod picture;
mod schedule;
mod shape;
mod simulate;
mod validate;
mod zero_bubble;

pub use across_stages::{TiedGradient, add_tied, share_from_last, stage_uses};
pub use action::{Action, ActionKind};
pub use deadlock::{Sends, deadlock};
pub use error::{Result, ScheduleError, Stuck};
pub use executor::{ActionPart, Executor, Feed, PlanWork, Skipped, StageBoundary, StagePart};
pub use kind::{ScheduleKind, UnknownSchedule};
pub use layout::StageLayout;
pub use load::{Held, Load, Loads, loads};
pub use partition::{HeldBytes, LayerBytes, LayerCosts, Partition, PartitionError};
pub use picture::{svg, text};
pub use schedule::Schedule;
pub use shape::Shape;
pub use simulate::{ActionTimes, Span, StageTimes, Timeline, simulate};
pub use validate::{Report, validate};
