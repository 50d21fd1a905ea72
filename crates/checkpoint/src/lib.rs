//! Checkpoints: the state from which a run resumes and text is sampled.
//!
//! A checkpoint is a directory `RUN_DIR/checkpoints/step-NNNNNN` with two files:
//!
//! * `state.safetensors`: every parameter by its name, the optimizer's state as `adamw.first.<name>`,
//!   `adamw.second.<name>` or `sgd.velocity.<name>`, averages of weights as `ema.<name>`, and `run.losses`, a
//!   loss per step; all f32;
//! * `manifest.json`: the step, the settings that decide the bits, the identity of the corpus, and size and
//!   SHA-256 of the other file and of itself.
//!
//! Several ranks write a file each of the arrays that they hold, `state-00001-of-00004.safetensors`, and
//! rank 0 writes `state.safetensors.index.json`, the index of all elements. Each element is written once.
//!
//! A checkpoint that exists is complete: it is written under a hidden name, synced to the disk, and renamed.
//! No other state is needed, because random numbers and the data's order are functions of the step.
//!
//! ```
//! # let directory = tempfile::tempdir()?;
//! # let run_dir = directory.path();
//! if let Some(checkpoint) = checkpoint::newest(run_dir)? {
//!     println!("{} steps, the last loss {:?}", checkpoint.step(), checkpoint.losses()?.last());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod contents;
mod corpus_mark;
mod destination;
mod directory;
mod error;
mod format;
mod host_states;
mod index;
mod manifest;
mod memory;
mod reader;
mod resume;
mod snapshot;
mod state_files;
mod validations;
mod writer;

pub use contents::Contents;
pub use corpus_mark::CorpusMark;
pub use directory::{Directory, best, find, find_share, list, newest, newest_share, run_of};
pub use error::CheckpointError;
pub use host_states::{Copied, HostState, add_piece, host_states, missing, read_piece};
pub use index::{FileRange, Index};
pub use manifest::LossScale;
pub use memory::{FileOfState, IncomingFiles, MemoryWriter, Reported};
pub use reader::{Checkpoint, Share, Target};
pub use resume::ResumePoint;
pub use snapshot::Snapshot;
pub use validations::Validations;
pub use writer::Writer;
