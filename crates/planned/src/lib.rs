//! The planned steps of a run and the memory of each, and the comparison of a running rank with them.
//!
//! The one idea: **a run is compared with its plan part by part**, and the first allocation that differs is
//! reported.
//!
//! ```
//! use config::RunConfig;
//! use planned::{Calendar, StepKind};
//! let config = RunConfig::quickstart(&["train.validate_every=3".into()])?;
//! let calendar = Calendar::new(&config);
//! assert_eq!(calendar.kind(0), StepKind::default());
//! assert!(calendar.kind(2).validates && calendar.kind(calendar.steps - 1).validates);
//! # Ok::<(), config::ConfigError>(())
//! ```

mod calendar;
mod covered;
mod effects;
mod error;
mod outlived;
mod parts;
mod preallocation;
mod watch;

pub use calendar::{Calendar, StepKind, samples_of};
pub use effects::{StepEffect, StepEffects};
pub use error::{PlannedError, Result};
pub use parts::{Expected, PLANNED_EVENTS, PlannedPart, PlannedParts, PlannedPeak, UNPLANNED_EVENTS};
pub use preallocation::Preallocation;
pub use watch::{Findings, Watch, Writing, traces_path};
