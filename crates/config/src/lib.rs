//! The configuration of a run: reads TOML and `--set`, and returns one validated value.
//!
//! The one idea: no later code has to check a value again. [`RunConfig`] is built by one function, from a
//! file's text and the command line's overrides; each value has its own type, defaults are filled in, and
//! values have been checked against each other. Errors are reported before anything is allocated, in one
//! sentence that names the key, the file and the line ([`ConfigError`]).
//!
//! Each key is one row of a file in `sections/`: name, type, default, documentation, what it decides, how it
//! is read and written. The crate `keys` derives from the rows the structs below, the suggestion for a
//! misspelt key, the resolved text ([`RunConfig::to_toml`]) and the documentation's [`reference()`]. Checks
//! between keys are in `check.rs`.
//!
//! ```
//! use std::path::Path;
//! use config::RunConfig;
//!
//! let text = r#"
//!     [model]
//!     width = 64
//!     [data]
//!     paths = ["corpus/*.txt"]
//! "#;
//! let config = RunConfig::parse(text, "run.toml", Path::new("/home/me"), &["train.steps=10".into()])?;
//! assert_eq!(config.train.steps, 10);
//! assert_eq!(config.model.summary(), "GPT, 4 layers, width 64, 4 heads, context 128");
//!
//! let refused = RunConfig::parse(text, "run.toml", Path::new("/home/me"), &["model.heads=5".into()]);
//! assert_eq!(
//!     refused.unwrap_err().to_string(),
//!     "--set model.heads=5: model.width = 64 is not a multiple of model.heads = 5",
//! );
//! # Ok::<(), config::ConfigError>(())
//! ```

mod check;
mod check_adapters;
mod check_average;
mod check_context;
mod check_experts;
mod check_images;
mod check_offload;
mod check_optim;
mod check_prediction;
mod check_preference;
mod check_schedule;
mod check_tensor;
mod check_validation;
mod choices;
mod default_notes;
mod fine_tuning;
mod folder;
mod folder_note;
mod foreign;
mod hub;
mod identity;
mod lanes;
mod load;
mod mixture;
mod model;
mod optim_group;
mod paths;
mod run_config;
mod schedule_length;
mod sections;
mod settled;
mod table;
mod tokenizer;
mod tokenizer_warning;

pub use choices::{
    DataKind, Graphs, LoraBase, LossMean, MatmulPrecision, OffloadPolicy, OnOutOfMemory, OnSpike, OptimKind,
    Overlap, PartitionPolicy, PreferenceLoss, RecomputePolicy, ScheduleName, StateType, WeightType,
};
pub use foreign::foreign_key;
pub use hub::how_to_download;
pub use identity::{Change, differences};
pub use keys::{Error as ConfigError, Origin, Origins, Value};
pub use mixture::MixtureSource;
pub use model::ModelConfig;
pub use optim_group::OptimGroup;
pub use paths::normal_path;
pub use run_config::RunConfig;
pub use schedule_length::ScheduleLength;
pub use sections::{
    Checkpoint, Data, LoraSection, Memory, ModelSection, Optim, Parallel, Precision, Preference, Scaler,
    Telemetry, Train,
};
pub use settled::{SampleLengths, SizedContext};

use nn::Families;

/// Returns every key as Markdown: a heading and a table for each section, and for each family within
/// `[model]`. Ends with a newline.
///
/// ```
/// let table = config::reference();
/// assert!(table.contains("| `train.steps` | an integer from 1 to "));
/// ```
#[must_use]
pub fn reference() -> String {
    keys::reference(&table::table(Families::registered()), ModelSection::kind)
}

/// Returns a configuration file with every key at its default, commented out, with its documentation.
#[must_use]
pub fn defaults() -> String {
    keys::defaults(&table::table(Families::registered()))
}

#[cfg(test)]
mod tests;
