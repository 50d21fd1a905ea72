//! The files of a run directory: `metrics.jsonl`, a line per step, and `summary.json`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::{Result, TelemetryError};
use crate::rank_statistics::RankStatistics;

/// Appends lines of JSON. Each is handed to the system whole, so that a killed run keeps what it wrote.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
}

impl MetricsWriter {
    /// Starts an empty file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(TelemetryError::file(path, "create it"))?;
        Ok(MetricsWriter { path: path.to_owned(), file })
    }

    /// Goes on after the line of step `step`, and drops what comes behind it: later steps, and a line cut short.
    /// With step 0, or without the file, it starts an empty one.
    pub fn resume(path: &Path, step: u64) -> Result<Self> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options.map_err(TelemetryError::file(path, "open it"))?;
        let kept = bytes_until(&file, step).map_err(TelemetryError::file(path, "read it"))?;
        // Cutting a file is all or nothing, as a rename is.
        file.set_len(kept).map_err(TelemetryError::file(path, "cut it"))?;
        file.seek(SeekFrom::Start(kept)).map_err(TelemetryError::file(path, "seek in it"))?;
        Ok(MetricsWriter { path: path.to_owned(), file })
    }

    /// Writes a line, such as a [`StepMetrics`].
    pub fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = to_json(&self.path, serde_json::to_vec(line))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(TelemetryError::file(&self.path, "write a line"))
    }
}

/// Bytes of the lines, in order and whole, whose step is at most `step`.
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

/// One step, as a line of `metrics.jsonl`. Values that are not finite are `null` there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u64,
    /// Mean loss over the step's micro-batches.
    pub loss: f32,
    /// What the optimizer used.
    pub learning_rate: f32,
    /// Before clipping.
    pub gradient_norm: f32,
    /// Tokens (or samples) of all ranks per second of this step; where its time is known: not of the first, which warms up.
    pub tokens_per_second: Option<f64>,
    /// Rank 0's statistics after the step.
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

/// How the ranks are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Grid {
    /// Data-parallel ranks.
    pub data: usize,
    /// Pipeline stages.
    pub pipeline: usize,
}

/// What a run came to: `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Kind of device, such as `cpu`.
    pub device: String,
    /// Number of ranks.
    pub world_size: usize,
    /// Their layout.
    pub grid: Grid,
    /// Steps done.
    pub steps: u64,
    /// The loss of each step; `null` where it is not finite.
    pub losses: Vec<f32>,
    /// Over names and master weights, hexadecimal.
    pub weights_sha256: String,
    /// Tokens (or samples) of all ranks per second of training.
    pub tokens_per_second: f64,
    /// Every rank's statistics at the end of the last training step.
    #[serde(serialize_with = "rank_entries")]
    pub ranks: Vec<RankStatistics>,
    /// Further values, such as `validation_loss` and the versions of libraries.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Summary {
    /// Writes it to `path`, whole or not at all.
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

/// Writes a file under a temporary name beside it, brings it to the disk and renames it, so that `path` has either
/// what it had before or all of `bytes`.
pub fn atomic_write(path: &Path, bytes: &[u8]) -> Result<()> {
    let Some(name) = path.file_name() else {
        let source = std::io::Error::from(std::io::ErrorKind::IsADirectory);
        return Err(TelemetryError::file(path, "write to it")(source));
    };
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = write_and_rename(&temporary, path, bytes);
    if written.is_err() {
        // The error that matters is the one above; the file may not even exist.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Removes what [`atomic_write`] leaves beside `path` where its process was killed. No other process may be writing there.
pub fn remove_temporaries(path: &Path) -> Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    let unlisted = || TelemetryError::file(directory, "list the directory");
    for entry in std::fs::read_dir(directory).map_err(unlisted())? {
        let entry = entry.map_err(unlisted())?;
        let left = entry.file_name();
        let process =
            left.to_str().and_then(|left| left.strip_prefix('.')?.strip_prefix(name)?.strip_prefix('.'));
        if process.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())) {
            let path = entry.path();
            std::fs::remove_file(&path).map_err(TelemetryError::file(&path, "delete it"))?;
        }
    }
    Ok(())
}

fn write_and_rename(temporary: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(temporary).map_err(TelemetryError::file(path, "create it"))?;
    file.write_all(bytes).map_err(TelemetryError::file(path, "write to it"))?;
    file.sync_all().map_err(TelemetryError::file(path, "bring it to the disk"))?;
    std::fs::rename(temporary, path).map_err(TelemetryError::file(path, "rename it into place"))?;
    sync_directory(path)
}

/// A rename is lasting when the directory is on the disk too.
fn sync_directory(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(TelemetryError::file(directory, "bring it to the disk"))
}
