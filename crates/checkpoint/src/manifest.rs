//! The file `manifest.json`: the settings of a checkpoint's run, and the hashes that verify it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use system::file_error::FileContext;
use system::input;
use system::numbers::grouped;
use system::numbers::hexadecimal;

use crate::contents::Contents;
use crate::corpus_mark::CorpusMark;
use crate::error::{CheckpointError, Result};
use crate::validations::Validations;

/// Version number of the checkpoint format that is written and read.
const FORMAT: u64 = 1;
/// Maximum size of the file in bytes.
const MOST_BYTES: u64 = 16 << 20;
pub(crate) const MANIFEST: &str = "manifest.json";
/// File name of the arrays if one file holds them all.
pub(crate) const STATE: &str = "state.safetensors";

/// Size and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileDigest {
    pub(crate) bytes: u64,
    sha256: String,
}

impl FileDigest {
    pub(crate) fn new(bytes: u64, digest: Sha256) -> Self {
        FileDigest { bytes, sha256: hexadecimal(&digest.finalize()) }
    }
}

/// A dynamic loss scale, bit-exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The bits of the scale as an f32.
    pub scale_bits: u32,
    /// Updates since the scale last changed.
    pub good_steps: u32,
}

/// The contents of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    format: u64,
    pub(crate) version: String,
    /// Versions of the libraries used for computing; absent in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) libraries: Option<String>,
    pub(crate) step: u64,
    /// Number of updates the optimizer made; absent if every step made one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    updates: Option<u32>,
    /// The loss scale; absent if the run has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loss_scale: Option<LossScale>,
    /// The settings that affect results, by key, each value as TOML.
    pub(crate) configuration: BTreeMap<String, String>,
    /// SHA-256 of the whole corpus, in checkpoints of versions without `corpus`.
    pub(crate) corpus_sha256: Option<String>,
    /// The corpus; absent for synthetic data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) corpus: Option<CorpusMark>,
    /// Mean loss of the last validation.
    validation_loss: Option<f64>,
    /// Steps completed before that validation; absent before the first, and in checkpoints of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    validation_step: Option<u64>,
    /// Identifier of the frozen parameters' weights if the checkpoint omits them; otherwise absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<String>,
    /// The lowest validation loss; absent before the first validation and in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best_validation_loss: Option<f64>,
    /// Number of validations after the one with the lowest loss; absent if zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    validations_since_best: Option<u64>,
    /// Gradient norms of the last steps, null for spikes and non-finite norms; absent if nothing depends on
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gradient_norms: Vec<Option<f32>>,
    /// SHA-256 of the reference model's scores; absent if the loss has no reference model, and in checkpoints
    /// of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reference_sha256: Option<String>,
    /// Steps whose samples the run skipped, as indices in data order; absent if there were none, and in
    /// checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) left_out: Vec<u64>,
    /// Size and hash of the checkpoint's other files, by name.
    files: BTreeMap<String, FileDigest>,
    /// SHA-256 of this manifest, serialized without indentation and with this field empty.
    manifest_sha256: String,
}

impl Manifest {
    pub(crate) fn new(
        step: u64,
        (updates, loss_scale): (u32, Option<LossScale>),
        contents: &Contents,
        validations: Validations,
        files: BTreeMap<String, FileDigest>,
    ) -> Self {
        let mut manifest = Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            libraries: Some(contents.libraries.clone()),
            step,
            updates: Some(updates),
            loss_scale,
            configuration: contents.configuration.clone(),
            corpus_sha256: None,
            corpus: contents.corpus.clone(),
            base: contents.base.clone(),
            validation_loss: validations.last.filter(|loss| loss.is_finite()),
            validation_step: validations.step,
            best_validation_loss: validations.best,
            validations_since_best: validations.best.map(|_| validations.since_best),
            gradient_norms: Vec::new(),
            reference_sha256: contents.reference_sha256.get().cloned(),
            left_out: contents.left_out.clone(),
            files,
            manifest_sha256: String::new(),
        };
        manifest.manifest_sha256 = manifest.digest();
        manifest
    }

    /// Adds the gradient norms of the last steps.
    pub(crate) fn with_gradient_norms(mut self, norms: &[Option<f32>]) -> Self {
        self.gradient_norms = norms.to_vec();
        self.manifest_sha256 = self.digest();
        self
    }

    /// Returns the hash over all fields except the hash itself. Texts that parse to the same values have the
    /// same hash.
    fn digest(&self) -> String {
        let bare = Manifest { manifest_sha256: String::new(), ..self.clone() };
        // Serializing numbers, strings and maps of strings does not fail.
        hexadecimal(&Sha256::digest(serde_json::to_vec(&bare).unwrap_or_default()))
    }

    /// Returns the manifest's hash, which depends on every byte of the checkpoint.
    pub(crate) fn id(&self) -> &str {
        &self.manifest_sha256
    }

    /// Returns the number of updates the optimizer made.
    pub(crate) fn updates(&self) -> u64 {
        self.updates.map_or(self.step, u64::from)
    }

    /// Returns the validations of the run up to the checkpoint.
    pub(crate) fn validations(&self) -> Validations {
        let since_best = self.validations_since_best.unwrap_or(0);
        Validations {
            last: self.validation_loss,
            step: self.validation_step,
            best: self.best_validation_loss,
            since_best,
        }
    }

    pub(crate) fn to_text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Reads the manifest in `directory` and verifies its hash.
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST);
        let text = input::read(&path, MOST_BYTES).context(&path, "read it")?;
        let damaged = |what: String| CheckpointError::damaged(&path, what);
        let value: Value = serde_json::from_slice(&text)
            .map_err(|error| damaged(format!("it is truncated or corrupted: {error}")))?;
        if let Some(format) = value.get("format").and_then(Value::as_u64).filter(|format| *format != FORMAT) {
            return Err(damaged(format!(
                "its format is {format}, and this version of Plimsoll reads {FORMAT}"
            )));
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|error| damaged(format!("it is corrupted: {error}")))?;
        if manifest.digest() != manifest.manifest_sha256 {
            return Err(damaged("it is corrupted: its SHA-256 is not the one that it says".to_owned()));
        }
        Ok(manifest)
    }

    /// Returns whether the file [`STATE`] holds all arrays.
    pub(crate) fn is_single(&self) -> bool {
        self.files.len() <= 1
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Checks the current size of the file at `path` against the manifest.
    pub(crate) fn check_size(&self, path: &Path, bytes: u64) -> Result<()> {
        check_size(path, bytes, self.written(path)?)
    }

    /// Checks `digest`, the current size and hash of the file at `path`, against the manifest.
    pub(crate) fn check_file(&self, path: &Path, digest: &FileDigest) -> Result<()> {
        let written = self.written(path)?;
        check_size(path, digest.bytes, written)?;
        if digest.sha256 != written.sha256 {
            let what = "it is corrupted: its SHA-256 is not the one that was written";
            return Err(CheckpointError::damaged(path, what));
        }
        Ok(())
    }

    fn written(&self, path: &Path) -> Result<&FileDigest> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        self.files.get(name).ok_or_else(|| CheckpointError::damaged(path, "its manifest does not name it"))
    }
}

fn check_size(path: &Path, bytes: u64, written: &FileDigest) -> Result<()> {
    if bytes == written.bytes {
        return Ok(());
    }
    let what = if bytes < written.bytes { "truncated" } else { "longer than it was" };
    let [bytes, written] = [bytes, written.bytes].map(grouped);
    let text = format!("it is {what}: it has {bytes} bytes and was written with {written}");
    Err(CheckpointError::damaged(path, text))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Writes a manifest of 5 steps, and returns the number of updates read back.
    fn updates_read(written: Option<u32>) -> u64 {
        let files = BTreeMap::from([(STATE.to_owned(), FileDigest::new(0, Sha256::new()))]);
        let contents = Contents {
            keep: 1,
            configuration: BTreeMap::new(),
            libraries: String::new(),
            base: None,
            corpus: None,
            before: Arc::new(|| Ok(())),
            reference_sha256: Arc::default(),
            left_out: Vec::new(),
        };
        let mut manifest = Manifest::new(5, (0, None), &contents, Validations::default(), files);
        manifest.updates = written;
        manifest.manifest_sha256 = manifest.digest();
        let directory = tempfile::tempdir().unwrap();
        let text = manifest.to_text();
        assert_eq!(String::from_utf8(text.clone()).unwrap().contains("updates"), written.is_some());
        std::fs::write(directory.path().join(MANIFEST), text).unwrap();
        Manifest::read(directory.path()).unwrap().updates()
    }

    #[test]
    fn a_manifest_without_updates_made_one_in_every_step() {
        assert_eq!([None, Some(3), Some(5)].map(updates_read), [5, 3, 5]);
    }
}
