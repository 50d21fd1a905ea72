//! `spikes.json` in a run directory: the steps with a gradient norm spike, and the action taken. The file
//! decides which samples a run skips, so each entry has a hash over itself and all earlier entries.
//! Checkpoints store the skipped steps.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;
use system::{input, threads};
use telemetry::run_files::atomic_write;

use crate::error::{Result, RunError};
use crate::spikes::Spike;

/// File name in the run directory.
pub(crate) const FILE: &str = "spikes.json";
/// Maximum bytes read of the file.
const MOST_BYTES: u64 = 64 << 20;

/// A spike in the file, as JSON.
type Entry = Map<String, Value>;

/// The key of an entry's hash: SHA-256 over the previous entry's hash and the entry without this key.
const HASH: &str = "sha256";

/// Reads the spikes of a run, and whether their hashes were verified. Empty if there is no file.
///
/// # Errors
/// The file cannot be read or parsed, or an entry does not match its hash.
fn read(run_dir: &Path) -> Result<(Vec<Spike>, bool)> {
    let path = run_dir.join(FILE);
    let text = match input::read(&path, MOST_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), true)),
        text => text.map_err(|error| refused(&path, &error.to_string()))?,
    };
    let damaged = |error: serde_json::Error| refused(&path, &format!("it is damaged: {error}"));
    let entries: Vec<Entry> = serde_json::from_slice(&text).map_err(damaged)?;
    let is_verified = check_hashes(&path, &entries)?;
    let spike = |mut entry: Entry| {
        entry.remove(HASH);
        serde_json::from_value(Value::Object(entry)).map_err(damaged)
    };
    let spikes: Vec<Spike> = entries.into_iter().map(spike).collect::<Result<_>>()?;
    Ok((spikes, is_verified))
}

/// Checks the hashes of all entries. Returns whether there are any; earlier versions wrote none.
///
/// # Errors
/// An entry has changed or lacks its hash.
fn check_hashes(path: &Path, entries: &[Entry]) -> Result<bool> {
    if entries.iter().all(|entry| !entry.contains_key(HASH)) {
        return Ok(entries.is_empty());
    }
    let mut before = String::new();
    for (number, entry) in (1..).zip(entries) {
        let mut bare = entry.clone();
        let written = bare.remove(HASH);
        before = hash(&before, &bare);
        if written.as_ref().and_then(Value::as_str) != Some(&before) {
            let text = format!("it is damaged: the SHA-256 of entry {number} is not the one that it says");
            return Err(refused(path, &text));
        }
    }
    Ok(true)
}

fn hash(before: &str, bare: &Entry) -> String {
    let mut digest = Sha256::new();
    digest.update(before);
    // Serializing numbers and strings does not fail.
    digest.update(serde_json::to_vec(bare).unwrap_or_default());
    hexadecimal(&digest.finalize())
}

/// Encodes these spikes as the text of a file.
fn text_of(spikes: &[Spike]) -> serde_json::Result<Vec<u8>> {
    let mut before = String::new();
    let mut entries = Vec::new();
    for spike in spikes {
        // As numbers of the type that they have, and not as f64.
        let mut entry: Entry = serde_json::from_slice(&serde_json::to_vec(spike)?)?;
        before = hash(&before, &entry);
        entry.insert(HASH.to_owned(), before.clone().into());
        entries.push(entry);
    }
    let mut text = serde_json::to_vec_pretty(&entries)?;
    text.push(b'\n');
    Ok(text)
}

fn refused(path: &Path, what: &str) -> RunError {
    let path = path.display();
    RunError::Refused(format!(
        "{path}: {what}; it decides which samples a resumed run leaves out: put back the file that the run wrote"
    ))
}

/// Returns the steps whose samples the run skips, as indices in data order, ascending. `before` has the steps
/// that the resumed checkpoint's run had already skipped.
///
/// # Errors
/// As for [`read`]; or a step of `before` is missing.
pub(crate) fn left_out(run_dir: &Path, before: &[u64]) -> Result<Vec<u64>> {
    let (spikes, is_verified) = read(run_dir)?;
    if !is_verified {
        let path = run_dir.join(FILE);
        tracing::warn!("{}: it cannot be verified: an earlier version wrote it", path.display());
    }
    let mut left_out: Vec<u64> =
        spikes.iter().filter(|spike| spike.rewinds()).map(|spike| spike.samples).collect();
    left_out.sort_unstable();
    left_out.dedup();
    if let Some(missing) = before.iter().find(|step| left_out.binary_search(step).is_err()) {
        let text = format!(
            "it lacks the spike of the samples of step {} in the order of the data, which the checkpoint's \
             run had left out",
            missing + 1
        );
        return Err(refused(&run_dir.join(FILE), &text));
    }
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
    /// Opens the file of a run that continues after `steps` steps. Spikes of later steps are dropped, unless
    /// their samples are skipped.
    pub(crate) fn open(run_dir: &Path, steps: u64) -> Result<Self> {
        let (mut all, _) = read(run_dir)?;
        all.retain(|spike| spike.rewinds() || spike.step <= steps);
        Ok(SpikeFile { path: run_dir.join(FILE), all, writing: None })
    }

    /// Adds a spike.
    ///
    /// # Errors
    /// An earlier write failed.
    pub(crate) fn add(&mut self, spike: &Spike) -> Result<()> {
        self.finish()?;
        self.all.push(spike.clone());
        let failed = |error: std::io::Error| RunError::File { path: self.path.clone(), source: error };
        let text = text_of(&self.all).map_err(|error| failed(error.into()))?;
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
