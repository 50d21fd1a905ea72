//! Files of a run directory that are written as a whole, such as `summary.json`.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use system::file_error::FileContext;
use system::{input, output};

use crate::error::{Result, Unreadable};
use crate::grid_sizes::GridSizes;
use crate::rank_statistics::RankStatistics;

/// Maximum size of a summary that is read, in bytes; each loss takes about ten.
const MOST_BYTES: u64 = 256 << 20;

/// The result of a run: `summary.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Kind of device, such as `cpu`.
    pub device: String,
    /// Number of ranks.
    pub world_size: usize,
    /// Grid of ranks.
    pub grid: GridSizes,
    /// Number of completed steps.
    pub steps: u64,
    /// Loss of each step; non-finite losses are written as `null`.
    #[serde(deserialize_with = "losses")]
    pub losses: Vec<f32>,
    /// SHA-256 over the names and master weights of all parameters, in hexadecimal.
    pub weights_sha256: String,
    /// Tokens (or samples) per second of training, over all ranks.
    pub tokens_per_second: f64,
    /// Statistics of every rank at the end of the last training step.
    #[serde(serialize_with = "rank_entries", deserialize_with = "rank_statistics")]
    pub ranks: Vec<RankStatistics>,
    /// Additional values, such as `validation_loss` and the versions of libraries.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Summary {
    /// Writes the summary to `path` atomically.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = to_json(path, serde_json::to_vec_pretty(self))?;
        text.push(b'\n');
        atomic_write(path, &text)
    }

    /// Reads a summary; `None` if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read or is not a summary.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        Ok(Self::read_with_text(path)?.map(|(_, summary)| summary))
    }

    /// Reads a summary and the file's text; `None` if the file does not exist.
    pub fn read_with_text(path: &Path) -> Result<Option<(Vec<u8>, Self)>> {
        let text = match input::read(path, MOST_BYTES) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.unreadable(path)?,
        };
        let read = serde_json::from_slice(&text);
        let read = read.map(|summary| Some((text, summary)));
        read.unreadable(path)
    }
}

fn losses<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<f32>, D::Error> {
    let losses = Vec::<Option<f32>>::deserialize(deserializer)?;
    Ok(losses.into_iter().map(|loss| loss.unwrap_or(f32::NAN)).collect())
}

fn rank_statistics<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<RankStatistics>, D::Error> {
    let entries = Vec::<Map<String, Value>>::deserialize(deserializer)?;
    Ok(entries.iter().map(RankStatistics::from_json).collect())
}

fn rank_entries<S: Serializer>(
    ranks: &[RankStatistics],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(ranks.iter().map(RankStatistics::to_json))
}

pub(crate) fn to_json(path: &Path, text: serde_json::Result<Vec<u8>>) -> Result<Vec<u8>> {
    Ok(text.context(path, "express the values as JSON")?)
}

/// Writes a file of the run atomically ([`output::write_own`]).
pub fn atomic_write(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(output::write_own(path, bytes).context(path, "write it")?)
}

/// Removes temporary files that a killed [`atomic_write`] left in `directory`, if it exists. No other process
/// may be writing in it.
///
/// # Errors
/// Files cannot be listed or removed.
pub fn remove_all_temporaries(directory: &Path) -> Result<()> {
    let removed = output::remove_all_temporaries(directory);
    Ok(removed.context(directory, "remove the temporary files of a killed process")?)
}

/// Removes temporary files that a killed [`atomic_write`] left next to `path`. No other process may be
/// writing `path`.
///
/// # Errors
/// Files cannot be listed or removed.
pub fn remove_temporaries(path: &Path) -> Result<()> {
    Ok(output::remove_temporaries(path).context(path, "remove the temporary file of a killed process")?)
}
