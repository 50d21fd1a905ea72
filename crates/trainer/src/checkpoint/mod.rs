//! Checkpoints: what a run continues from, and what text is sampled from.
//!
//! A checkpoint is a directory `RUN_DIR/checkpoints/step-NNNNNN` with two files:
//!
//! * `state.safetensors`: every parameter by its name, the optimizer's state as `adamw.first.<name>`,
//!   `adamw.second.<name>` or `sgd.velocity.<name>`, and `run.losses`, a loss per step; all f32;
//! * `manifest.json`: the step, the settings that decide the bits, the corpus's hash, and size and SHA-256 of the other
//!   file and of itself.
//!
//! It is complete where it is present: it is written under a hidden name, brought to the disk, and renamed. Nothing
//! else need be saved, because random numbers and the data's order are functions of the step.

mod directory;
mod error;
mod format;
mod manifest;
mod reader;
mod snapshot;
mod writer;

pub use directory::{list, newest};
pub use error::CheckpointError;
pub use reader::Checkpoint;

pub(crate) use directory::Directory;
pub(crate) use manifest::differences;
pub(crate) use reader::Target;
pub(crate) use snapshot::{contribute, load_parameters, restore, whole};
pub(crate) use writer::Saver;
