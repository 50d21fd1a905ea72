//! One rank of a run: its device, its stages of the model, its state, and its steps.
//!
//! The one idea: **there is one worker**. A rank of a run, and the dry run on Meta that computes its memory
//! beforehand, are the same [`Worker`] with another device and another communicator.
//!
//! ```
//! use collective::Communicator;
//! use config::RunConfig;
//! use nn::Stage;
//! use worker::dataset::DataScope;
//! use worker::{Placement, Setup, Worker, WorkerError};
//! let config = RunConfig::quickstart(&["parallel.data=1".into(), "model.width=32".into()])?;
//! let whole = |config: &RunConfig, _: &_, _: &_| Ok::<_, WorkerError>(vec![Stage::whole(config.layers())]);
//! let setup = Setup::new(config, Placement::Cpu, DataScope::All, whole)?;
//! let mut worker = Worker::new(&setup, Communicator::solo())?;
//! worker.step(0)?;
//! assert!(worker.scalars(0)?.loss < 6.0); // of 256 bytes, ln 256 is 5.55
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bookkeeping;
pub mod build;
pub mod dataset;
pub mod engine;
mod error;
pub mod feed;
pub mod graphs;
#[cfg(test)]
mod imitated_gpu;
mod observers;
mod phases;
pub mod setup;
pub mod stages;
pub mod state;
mod step_results;
mod update;
pub mod validation;
mod verification;
mod worker;

pub use error::{CORRUPTION, Result, WorkerError, is_out_of_memory};
pub use graphs::refusals::never_captured;
pub use observers::hooks::{ModelHook, Moment, StepHook, StepMoment};
pub use observers::operator_timer::{MemoryPoint, OperatorTimer};
pub use observers::tensor_hashes::{TensorHook, TensorSite};
pub use phases::Phases;
pub use setup::buffers::BufferEntry;
pub use setup::placement::{DeviceChoice, Gpus, Placement};
pub use setup::start::{Averaged, Layered, Start, Weights};
pub use setup::{DEFAULT_ALLOCATOR, Setup};
pub use state::hash::agreed_hash;
pub use state::records::Decoded;
pub use step_results::StepScalars;
pub use validation::preference::{FIGURES, PreferenceFigures};
pub use validation::results::{Accuracy, Losses, Validation, weighted_mean};
pub use worker::{StepMemory, Worker};
