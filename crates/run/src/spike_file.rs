//! `spikes.json` in a run directory: the steps whose gradient norm was a spike, and what was done.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use system::{input, threads};
use telemetry::run_files::atomic_write;

use crate::error::{Result, RunError};
use crate::spikes::Spike;

/// The name of the file in a run directory.
const FILE: &str = "spikes.json";
/// The most bytes of the file that are read.
const MOST_BYTES: u64 = 64 << 20;

/// Returns the spikes that a run has met; none if there is no file.
///
/// # Errors
/// A file that cannot be read or parsed.
fn read(run_dir: &Path) -> Result<Vec<Spike>> {
    let path = run_dir.join(FILE);
    let failed = |source| RunError::File { path: path.clone(), source };
    match input::read(&path, MOST_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        text => serde_json::from_slice(&text.map_err(failed)?).map_err(|error| failed(error.into())),
    }
}

/// Returns the steps, in the order of the data, whose samples a run leaves out, in ascending order.
///
/// # Errors
/// As for [`read`].
pub(crate) fn left_out(run_dir: &Path) -> Result<Vec<u64>> {
    let mut left_out: Vec<u64> =
        read(run_dir)?.iter().filter(|spike| spike.rewinds()).map(|spike| spike.samples).collect();
    left_out.sort_unstable();
    left_out.dedup();
    Ok(left_out)
}

/// The file of spikes, which a separate thread writes.
#[derive(Debug)]
pub(crate) struct SpikeFile {
    path: PathBuf,
    all: Vec<Spike>,
    writing: Option<JoinHandle<telemetry::Result<()>>>,
}

impl SpikeFile {
    /// Opens the file of a run that goes on after `steps` steps, without decisions of later steps but those
    /// that left out samples.
    ///
    /// # Errors
    /// As for [`read`].
    pub(crate) fn open(run_dir: &Path, steps: u64) -> Result<Self> {
        let mut all = read(run_dir)?;
        all.retain(|spike| spike.rewinds() || spike.step <= steps);
        Ok(SpikeFile { path: run_dir.join(FILE), all, writing: None })
    }

    /// Adds a spike.
    ///
    /// # Errors
    /// The file could not be written before.
    pub(crate) fn add(&mut self, spike: &Spike) -> Result<()> {
        self.finish()?;
        self.all.push(spike.clone());
        let failed = |error: std::io::Error| RunError::File { path: self.path.clone(), source: error };
        let mut text = serde_json::to_vec_pretty(&self.all).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        let path = self.path.clone();
        self.writing = Some(threads::spawn("spikes", move || atomic_write(&path, &text)).map_err(failed)?);
        Ok(())
    }

    /// Waits until all spikes are written.
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self.writing.take().map(JoinHandle::join) {
            Some(Ok(written)) => Ok(written?),
            // A thread that panicked has printed why.
            Some(Err(_)) | None => Ok(()),
        }
    }
}
