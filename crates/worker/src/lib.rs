//! One rank of a run: its device, its stages of the model, its state, and its steps.
//!
//! The one idea: **there is one worker**. A rank of a run, and the dry run on Meta that computes its memory
//! beforehand, are the same [`Worker`] with another device and another communicator.
//!
//! ```no_run
//! use collective::Communicator;
//! use config::RunConfig;
//! use nn::Stage;
//! use worker::build::DataScope;
//! use worker::{Placement, Setup, Worker, WorkerError};
//! let config = RunConfig::quickstart(&["train.steps=1".into()])?;
//! let whole = |config: &RunConfig, _: &_, _: &_| Ok::<_, WorkerError>(vec![Stage::whole(config.layers())]);
//! let setup = Setup::new(config, Placement::Cpu, DataScope::All, whole)?;
//! let mut worker = Worker::new(&setup, Communicator::solo())?;
//! worker.step(0)?;
//! println!("the loss is {}", worker.scalars(0)?.loss);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod account;
pub mod answering;
mod arrays;
mod arriving;
pub mod blueprint;
mod buffers;
pub mod build;
mod calendar;
mod connect;
mod context_pieces;
mod conversations;
mod covered;
mod crossings;
mod engine;
mod error;
mod evaluation;
mod evaluator;
pub mod expected;
pub mod feed;
pub mod first_batch;
mod generator;
mod graphs;
mod hash;
mod hook;
mod image_source;
#[cfg(test)]
mod imitated_gpu;
mod loading;
mod never_captured;
mod numbers;
mod operator_timer;
pub mod optimizer;
mod outlived;
mod pair_work;
pub mod parts;
mod phase_memory;
mod phases;
mod pixel_buffer;
pub mod placement;
pub mod preallocate;
mod preference;
mod ranges;
mod records;
mod running_sha256;
mod setup;
mod start;
pub mod state;
pub mod status;
mod status_file;
pub mod step_effects;
mod targets;
mod tensor_hashes;
mod validation;
mod verification;
pub mod watch;
mod worker;

pub use buffers::BufferEntry;
pub use calendar::{Calendar, StepKind};
pub use error::{CORRUPTION, Result, WorkerError, is_out_of_memory};
pub use evaluator::Evaluator;
pub use expected::{PlannedPart, PlannedParts, PlannedPeak};
pub use generator::{Generator, GeneratorBytes, GeneratorOptions, Line};
pub use hash::agreed_hash;
pub use hook::{ModelHook, Moment, StepHook, StepMoment};
pub use never_captured::never_captured;
pub use numbers::samples_of;
pub use operator_timer::{MemoryPoint, OperatorTimer};
pub use phases::{PhaseSink, Phases};
pub use placement::{DeviceChoice, Gpus, Placement};
pub use preference::{FIGURES, PreferenceFigures};
pub use records::Decoded;
pub use setup::{DEFAULT_ALLOCATOR, Setup};
pub use start::{Layered, Start, Weights};
pub use tensor_hashes::{TensorHook, TensorSite};
pub use validation::{Accuracy, Losses, Validation, weighted_mean};
pub use worker::{StepMemory, StepScalars, Worker};
