//! The identity of a run's corpus, as recorded in a manifest.

use serde::{Deserialize, Serialize};

/// Size, time and hashes that identify a corpus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusMark {
    /// Total number of tokens in all files.
    pub tokens: u64,
    /// Latest modification time of the files, in seconds since 1970.
    pub modified: i64,
    /// SHA-256 of samples at fixed offsets, in hexadecimal.
    pub samples_sha256: String,
    /// SHA-256 of the whole corpus, if configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}
