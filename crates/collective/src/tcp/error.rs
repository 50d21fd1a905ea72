//! Errors while joining a job.

use crate::processes::IdentityError;

/// Errors while joining a job. Every rank returns one.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The ranks, their settings or the port are invalid.
    #[error("{0}")]
    Refused(String),
    /// A rank did not arrive, or ended.
    #[error("{0}")]
    Absent(String),
    /// The ranks could not exchange their identities.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}
