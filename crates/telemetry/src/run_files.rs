//! Files of a run directory: `metrics.jsonl`, with a line per step, and `summary.json`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use system::output;

use crate::error::{Result, TelemetryError};
use crate::rank_statistics::RankStatistics;

/// Appends lines of JSON, each with one write, so that a killed run keeps its lines.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
}

impl MetricsWriter {
    /// Creates an empty file. Errors: it cannot be created.
    pub fn create(path: &Path) -> Result<Self> {
        let file = output::open_own(path, OpenOptions::new().write(true).create(true).truncate(true));
        let file = file.map_err(TelemetryError::file(path, "create it"))?;
        Ok(MetricsWriter { path: path.to_owned(), file })
    }

    /// Continues after the line of step `step` and removes what follows it: later steps and incomplete lines.
    /// Starts an empty file if `step` is 0 or there is no file. Errors: the file cannot be read or written.
    pub fn resume(path: &Path, step: u64) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = output::open_own(path, options.read(true).write(true).create(true).truncate(false));
        let mut file = file.map_err(TelemetryError::file(path, "open it"))?;
        let kept = bytes_until(&file, step).map_err(TelemetryError::file(path, "read it"))?;
        // Truncation is atomic, as a rename is.
        file.set_len(kept).map_err(TelemetryError::file(path, "cut it"))?;
        file.seek(SeekFrom::Start(kept)).map_err(TelemetryError::file(path, "seek in it"))?;
        Ok(MetricsWriter { path: path.to_owned(), file })
    }

    /// Writes a line, such as a [`StepMetrics`]. Errors: the file cannot be written.
    pub fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = to_json(&self.path, serde_json::to_vec(line))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(TelemetryError::file(&self.path, "write a line"))
    }
}

/// Bytes of the complete lines at the beginning of the file whose step is at most `step`.
fn bytes_until(file: &File, step: u64) -> std::io::Result<u64> {
    #[derive(Deserialize)]
    struct Line {
        step: u64,
    }
    let (mut reader, mut line, mut kept) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        let bytes = reader.read_until(b'\n', &mut line)?;
        let wanted = serde_json::from_slice::<Line>(&line).is_ok_and(|line| line.step <= step);
        if !wanted || line.last() != Some(&b'\n') {
            return Ok(kept);
        }
        kept += bytes as u64;
    }
}

/// A step: a line of `metrics.jsonl`. Values that are not finite are written as `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u64,
    /// Mean loss over the step's micro-batches.
    pub loss: f32,
    /// Learning rate of the update.
    pub learning_rate: f32,
    /// Gradient norm before clipping.
    pub gradient_norm: f32,
    /// Tokens (or samples) per second over all ranks; `None` for the first step, which warms up.
    pub tokens_per_second: Option<f64>,
    /// See [`crate::Statistic::AllocatedBytes`]; this and the following figures are rank 0's after the step.
    pub allocated_bytes: u64,
    /// See [`crate::Statistic::ReservedBytes`].
    pub reserved_bytes: u64,
    /// See [`crate::Statistic::PeakAllocatedBytes`].
    pub peak_allocated_bytes: u64,
    /// See [`crate::Statistic::PeakReservedBytes`].
    pub peak_reserved_bytes: u64,
    /// Further values of this step, such as `validation_loss`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The grid of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Grid {
    /// Number of data-parallel ranks.
    pub data: usize,
    /// Number of pipeline ranks.
    pub pipeline: usize,
}

/// The result of a run: `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Kind of device, such as `cpu`.
    pub device: String,
    /// Number of ranks.
    pub world_size: usize,
    /// Grid of ranks.
    pub grid: Grid,
    /// Number of steps done.
    pub steps: u64,
    /// Loss of each step; written as `null` if not finite.
    pub losses: Vec<f32>,
    /// SHA-256 over names and master weights, in hexadecimal.
    pub weights_sha256: String,
    /// Tokens (or samples) per second of training, over all ranks.
    pub tokens_per_second: f64,
    /// Statistics of every rank at the end of the last training step.
    #[serde(serialize_with = "rank_entries")]
    pub ranks: Vec<RankStatistics>,
    /// Further values, such as `validation_loss` and the versions of libraries.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Summary {
    /// Writes the summary to `path`, whole or not at all. Errors: the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = to_json(path, serde_json::to_vec_pretty(self))?;
        text.push(b'\n');
        atomic_write(path, &text)
    }
}

fn rank_entries<S: Serializer>(
    ranks: &[RankStatistics],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(ranks.iter().map(RankStatistics::to_json))
}

fn to_json(path: &Path, text: serde_json::Result<Vec<u8>>) -> Result<Vec<u8>> {
    text.map_err(|error| TelemetryError::file(path, "express the values as JSON")(error.into()))
}

/// Writes a file of the run, whole or not at all ([`output::write_own`]). Errors: the file cannot be written.
pub fn atomic_write(path: &Path, bytes: &[u8]) -> Result<()> {
    output::write_own(path, bytes).map_err(TelemetryError::file(path, "write it"))
}

/// Removes temporary files that a killed [`atomic_write`] left next to `path`. No other process may be
/// writing `path`. Errors: they cannot be listed or removed.
pub fn remove_temporaries(path: &Path) -> Result<()> {
    output::remove_temporaries(path)
        .map_err(TelemetryError::file(path, "remove what a killed process left of it"))
}
