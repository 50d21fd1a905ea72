//! What all checkpoints of a run share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Contents that all checkpoints of a run share.
#[derive(Clone)]
pub struct Contents {
    /// Number of checkpoints to keep, the newest ones.
    pub keep: u64,
    /// The settings that decide the bits, by key, as TOML.
    pub configuration: BTreeMap<String, String>,
    /// Versions of the libraries that compute.
    pub libraries: String,
    /// Returns the SHA-256 of the corpus in hexadecimal; none for synthetic data. Called on the thread that
    /// writes, since the first call may read the whole corpus. Errors: why it cannot be read.
    pub corpus_sha256: Arc<dyn Fn() -> Result<Option<String>, String> + Send + Sync>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("keep", &self.keep).finish_non_exhaustive()
    }
}
