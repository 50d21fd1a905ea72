//! Errors of reading and writing checkpoints.

use std::path::{Path, PathBuf};

use system::file_error::FileError;

pub(crate) type Result<T> = std::result::Result<T, CheckpointError>;

/// Error of a checkpoint that was refused or could not be written. Every message names the path.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum CheckpointError {
    #[error("{}: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    /// The newest checkpoint of a run is damaged. The user decides whether to continue from an older one.
    #[error("{damage}; {}", advice(newest, intact.as_deref()))]
    NewestDamaged {
        #[source]
        damage: Box<CheckpointError>,
        newest: PathBuf,
        intact: Option<PathBuf>,
    },
    /// A run has no checkpoint, or none of the requested step.
    #[error("{}: it holds no checkpoint{}", path.display(), advice_on_steps(*step, there))]
    Missing { path: PathBuf, step: Option<u64>, there: Vec<u64> },
    /// A run keeps no checkpoint with the lowest validation loss.
    #[error(
        "{}: it keeps no best checkpoint: train with checkpoint.keep_best = true and train.validate_every",
        path.display()
    )]
    NoBest { path: PathBuf },
    /// The checkpoint belongs to a run with other result-affecting settings.
    #[error("{}: {what}", path.display())]
    OtherRun { path: PathBuf, what: String },
    /// An operation of the file system failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A rank could not write its file.
    #[error("{}: rank {rank}: {what}", path.display())]
    Rank { path: PathBuf, rank: usize, what: String },
    /// The writing thread could not be started, panicked, or lacked data.
    #[error("{}: {what}", path.display())]
    Thread { path: PathBuf, what: String },
}

impl CheckpointError {
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        CheckpointError::Damaged { path: path.to_owned(), what: what.into() }
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
