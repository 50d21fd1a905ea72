//! The sections of the configuration. Every key is one row in its section's file.

mod checkpoint;
mod data;
mod lora;
mod memory;
mod model;
mod optim;
mod parallel;
mod precision;
mod preference;
mod scaler;
mod telemetry;
mod train;

pub use checkpoint::Checkpoint;
pub use data::Data;
pub use lora::LoraSection;
pub use memory::Memory;
pub use model::ModelSection;
pub use optim::Optim;
pub use parallel::Parallel;
pub use precision::Precision;
pub use preference::Preference;
pub use scaler::Scaler;
pub use telemetry::Telemetry;
pub use train::Train;

/// The largest integer that TOML guarantees to support.
const MOST: u64 = i64::MAX as u64;
