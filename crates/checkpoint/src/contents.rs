//! The data that all checkpoints of a run share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::corpus_mark::CorpusMark;

/// The data that all checkpoints of a run share.
#[derive(Clone)]
pub struct Contents {
    /// Number of checkpoints to keep, the newest ones.
    pub keep: u64,
    /// The settings that decide the bits, by key, as TOML.
    pub configuration: BTreeMap<String, String>,
    /// Versions of the libraries that compute.
    pub libraries: String,
    /// Called before each checkpoint, on the thread that writes it, to sync the files that a resumed run
    /// expects.
    pub before: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Identifier of the frozen parameters' weights, if checkpoints omit them.
    pub base: Option<String>,
    /// The corpus; none for synthetic data.
    pub corpus: Option<CorpusMark>,
    /// SHA-256 of the scores of the reference model, once they are known; unset where the loss needs none.
    pub reference_sha256: Arc<OnceLock<String>>,
    /// Steps, in the order of the data, whose samples the run leaves out, in ascending order.
    pub left_out: Vec<u64>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("keep", &self.keep).finish_non_exhaustive()
    }
}
