//! Reports about a run: per-rank statistics, tables, logs, progress, HTML pages, and files of the run
//! directory.
//!
//! **Every statistic is a variant of one enumeration**, [`Statistic`], documented there with what it counts
//! and excludes. Messages between ranks, tables and files iterate over the enumeration, so a new statistic is
//! one variant and one expression for its value.
//!
//! ```
//! use collective::{Communicator, Traffic};
//! use memory::{Allocator, Category, Settings, Stream, Tag, Usage, drivers::Counting};
//! use telemetry::{DriverAccount, PhaseTimes, RankStatistics, Sources, gather, table::memory_table};
//!
//! let mut allocator = Allocator::new(Counting::new(1 << 30), Settings::default())?;
//! allocator.allocate(4 << 20, Stream(0), Tag::with_category(Category::Parameter))?;
//! let sources = Sources {
//!     statistics: allocator.statistics(),
//!     live: allocator.category_bytes(),
//!     at_peak: allocator.peak_category_bytes(),
//!     host: Usage::default(),
//!     traffic: Traffic::default(),
//!     driver: DriverAccount::default(),
//!     phases: PhaseTimes::default(),
//! };
//! let mut communicator = Communicator::solo();
//! let own = RankStatistics::take(communicator.rank(), "box", "cpu", &sources);
//! if let Some(ranks) = gather(&mut *communicator.control, &own)? {
//!     assert!(memory_table(&ranks).contains("4,194,304 (4.00 MiB)"));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate knows nothing about training.

mod error;
mod expert_loads;
mod gpu;
mod grid_sizes;
pub mod hashes;
mod lines_of_steps;
pub mod log;
mod log_files;
pub mod memory_views;
pub mod metrics;
pub mod operators;
mod phase;
mod prediction;
pub mod progress;
pub mod prometheus;
mod rank_statistics;
mod rank_step;
pub mod report;
pub mod run_files;
pub mod scaling;
mod statistic;
pub mod status;
pub mod step_trace;
mod svg;
pub mod table;
pub mod tensorboard;
pub mod timeline;
pub mod units;
mod wire;

pub use error::{Result, TelemetryError};
pub use expert_loads::{EXPERT_LOADS, ExpertLoads};
pub use gpu::{EnergyCounter, GpuLoad, GpuMonitor};
pub use grid_sizes::GridSizes;
pub use metrics::{GROUP_NORMS, LATER_LOSSES};
pub use phase::{Phase, PhaseCounter, PhaseTimes};
pub use prediction::{Cause, Others, PREDICTED_SECONDS, Prediction, Slowdown};
pub use progress::Progress;
pub use rank_statistics::{DriverAccount, RankStatistics, Sources, gather, host_name};
pub use rank_step::{PhaseFigures, RankRecord, RankStep, VALIDATION};
pub use statistic::{Statistic, Unit};
