//! Errors of reading and writing checkpoints.

use std::path::{Path, PathBuf};

/// Result type of reading or writing a checkpoint.
pub(crate) type Result<T> = std::result::Result<T, CheckpointError>;

/// Error of a checkpoint that is refused, or that could not be written. Every message names the path.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The checkpoint differs from what was written.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// The newest checkpoint of a run is damaged. The user decides whether to continue from an older one.
    #[error("{damage}; {}", advice(newest, intact.as_deref()))]
    NewestDamaged {
        /// The damage.
        #[source]
        damage: Box<CheckpointError>,
        /// The damaged checkpoint.
        newest: PathBuf,
        /// The newest intact checkpoint.
        intact: Option<PathBuf>,
    },
    /// A run has no checkpoint, or none of the requested step.
    #[error("{}: it holds no checkpoint{}", path.display(), advice_on_steps(*step, there))]
    Missing {
        /// The run or the checkpoint.
        path: PathBuf,
        /// The requested step.
        step: Option<u64>,
        /// The steps of the existing checkpoints.
        there: Vec<u64>,
    },
    /// A run has no checkpoint with the lowest validation loss.
    #[error(
        "{}: it keeps no best checkpoint: train with checkpoint.keep_best = true and train.validate_every",
        path.display()
    )]
    NoBest {
        /// The run.
        path: PathBuf,
    },
    /// The checkpoint belongs to a run whose settings give other weights.
    #[error("{}: {what}", path.display())]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// The settings that differ.
        what: String,
    },
    /// An operation of the file system failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The operation.
        action: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A rank could not write its file.
    #[error("{}: rank {rank}: {what}", path.display())]
    Rank {
        /// The checkpoint to be written.
        path: PathBuf,
        /// The rank.
        rank: usize,
        /// The failure.
        what: String,
    },
    /// The writing thread could not be started, panicked, or lacked data.
    #[error("{}: {what}", path.display())]
    Thread {
        /// The checkpoint to be written.
        path: PathBuf,
        /// The failure.
        what: String,
    },
}

impl CheckpointError {
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        CheckpointError::Damaged { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn file(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| CheckpointError::File { path: path.to_owned(), action, source }
    }
}

fn advice(newest: &Path, intact: Option<&Path>) -> String {
    match intact {
        Some(intact) => {
            format!("{} is intact: delete {} to continue from it", intact.display(), newest.display())
        }
        None => "no older checkpoint is intact".to_owned(),
    }
}

fn advice_on_steps(step: Option<u64>, there: &[u64]) -> String {
    match (step, there) {
        (None, _) => "; set checkpoint.every or checkpoint.minutes to keep weights".to_owned(),
        (Some(step), []) => format!(" of step {step}, nor any other"),
        (Some(step), _) => {
            let steps: Vec<_> = there.iter().map(u64::to_string).collect();
            let there = if steps.len() == 1 { "there is one of step" } else { "there are those of steps" };
            format!(" of step {step}; {there} {}", steps.join(", "))
        }
    }
}
