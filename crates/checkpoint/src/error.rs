//! What can be wrong with a checkpoint, or stand in the way of one.

use std::path::{Path, PathBuf};

/// Result of what reads or writes checkpoints.
pub(crate) type Result<T> = std::result::Result<T, CheckpointError>;

/// A checkpoint that is refused, or that could not be written. Each names the path.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is not what was written.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The newest of a run is damaged, and training on from an older one is for people to decide.
    #[error("{damage}; {}", advice(newest, intact.as_deref()))]
    NewestDamaged {
        /// What is wrong.
        #[source]
        damage: Box<CheckpointError>,
        /// The damaged checkpoint.
        newest: PathBuf,
        /// The newest one that is whole.
        intact: Option<PathBuf>,
    },
    /// It is of a run whose settings give other bits.
    #[error("{}: it is of another run: {differences}", path.display())]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// Key by key.
        differences: String,
    },
    /// The system refused something.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The thread that writes could not be started, or ended without an answer.
    #[error("{}: {what}", path.display())]
    Thread {
        /// The checkpoint that it was to write.
        path: PathBuf,
        /// What happened.
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
