//! A run from start to end: the ranks' devices, what all ranks agree on, the loop over steps, checkpoints,
//! and the resulting files.
//!
//! The one idea: **there is one loop**. One rank, four threads and the processes of a job run the same one.
//!
//! ```
//! use config::RunConfig;
//! use run::RunOptions;
//! use worker::DeviceChoice;
//! let config = RunConfig::quickstart(&["train.steps=2".into(), "model.width=32".into()])?;
//! # let directory = tempfile::tempdir()?;
//! # let runs = directory.path();
//! let run_dir = Some(runs.join("first"));
//! let options = RunOptions { device: DeviceChoice::Cpu, run_dir, quiet: true, ..RunOptions::default() };
//! let report = run::train(config, options)?;
//! assert_eq!((report.summary.steps, report.summary.weights_sha256.len()), (2, 64));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accuracy;
mod answering;
mod cause;
mod compare;
mod endpoint;
mod error;
pub mod failure;
mod history;
mod interrupt;
mod launch;
mod memory_saver;
mod memory_states;
mod metrics_history;
mod neighbours;
mod newest_intact;
mod options;
mod placement;
mod prediction;
mod rank;
mod reference;
mod repetition;
mod reporter;
mod restarts;
mod resume;
mod resumed_states;
mod run_directory;
mod run_report;
mod runs;
mod sampler;
mod save;
mod session;
mod sessions;
mod shared_memory;
mod spike_file;
mod spikes;
mod start_times;
mod startup;
mod stop_signal;
mod summary;
mod train_report;
mod tuned_model;
mod utc;
mod views;
pub mod weights;

use system::readers::Reader;

/// Readers of other programs' files in this crate, with the keys they accept.
pub const READERS: &[&Reader] = &[&HOSTFILE];

pub use checkpoint::{best as best_step, run_of};
pub use compare::compare;
pub use compare::{CompareOptions, ComparedRun, Comparison, Difference, MetricsParting, Rerun, RerunOptions};
pub use error::{JobError, Result, RunError};
pub use history::NonFinite;
pub use interrupt::{Interrupt, heed_limits};
pub use launch::{train, train_as};
pub use options::RunOptions;
pub use placement::ChosenPlacement;
pub use prediction::{check as check_described_device, predicted_step};
pub use rank::prepare_kernels;
pub use restarts::{HOSTFILE, JobLauncher, RestartedJob};
pub use resume::check_model;
pub use run_report::{configuration_of, report_run};
pub use runs::{ListedRun, is_training, list_runs};
pub use sampler::{Sample, Sampler};
pub use startup::Startup;
pub use stop_signal::StopSignal;
pub use train_report::TrainReport;
pub use tuned_model::TunedModel;
