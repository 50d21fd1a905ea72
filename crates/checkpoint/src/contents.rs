//! Data stored in every checkpoint of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::corpus_mark::CorpusMark;

/// Data stored in every checkpoint of a run.
#[derive(Clone)]
pub struct Contents {
    /// Number of newest checkpoints to keep.
    pub keep: u64,
    /// The settings that affect results, by key, each value as TOML.
    pub configuration: BTreeMap<String, String>,
    /// Versions of the libraries used for computing.
    pub libraries: String,
    /// Called before each checkpoint, on the writing thread, to sync the files that a resumed run expects.
    pub before: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Identifier of the frozen parameters' weights, if checkpoints omit them.
    pub base: Option<String>,
    /// The corpus; `None` for synthetic data.
    pub corpus: Option<CorpusMark>,
    /// SHA-256 of the reference model's scores, once known; unset if the loss has no reference model.
    pub reference_sha256: Arc<OnceLock<String>>,
    /// Steps whose samples the run skips, as indices in data order, ascending.
    pub left_out: Vec<u64>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("keep", &self.keep).finish_non_exhaustive()
    }
}
