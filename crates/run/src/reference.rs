//! `reference_scores.safetensors` in a run directory: ln p of every answer under the reference model, which
//! is the model before the first step. Each pair has the score of its chosen and of its rejected answer. A
//! run computes the scores once, and reads them when it resumes. Checkpoints store their hash, because every
//! later step depends on them.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use system::input;
use system::numbers::hexadecimal;
use telemetry::run_files::atomic_write;

use checkpoint::Checkpoint;

use crate::answering::while_answering;
use crate::error::{Result, RunError};
use telemetry::step_trace::RunPart;
use worker::{Setup, Worker, build};

/// File name in the run directory.
pub(crate) const FILE: &str = "reference_scores.safetensors";
/// Maximum size of the file in bytes, not counting its scores.
const MOST_HEADER: u64 = 1 << 20;
/// Name of the array of scores in the file.
const ARRAY: &str = "scores";

/// Computes the scores of all answers, and writes them to the run directory. Every rank must call this.
///
/// # Errors
/// A pass fails, or the file cannot be written.
pub(crate) fn score(worker: &mut Worker, run_dir: &Path) -> Result<()> {
    worker.score_reference()?;
    worker.check_plan(RunPart::Reference, 0)?;
    let is_written = worker.grid().rank() == 0 && !worker.device().is_meta();
    let scores = worker.reference_scores().filter(|_| is_written);
    let path = run_dir.join(FILE);
    let setup = worker.setup().clone();
    let write = scores.map(|scores| move || write(&path, &setup, &scores));
    while_answering(worker.control(), write)?.transpose()?;
    Ok(())
}

/// Reads the scores from the directory of a run that resumes from `checkpoint` into its setup, if the loss
/// needs them.
///
/// # Errors
/// The file is missing or cannot be read, belongs to other answers, or has other scores than the checkpoint's
/// run.
pub(crate) fn read(setup: &mut Setup, run_dir: &Path, checkpoint: &Checkpoint) -> Result<()> {
    if !build::objective(&setup.config).is_some_and(|objective| objective.has_reference()) {
        return Ok(());
    }
    let path = run_dir.join(FILE);
    let refused = |reason: &str| {
        RunError::Refused(format!(
            "{}: {reason}; a resumed run needs the scores that it computed at its start: put back the file \
             that the run wrote, or start a new run",
            path.display()
        ))
    };
    let pairs = setup.dataset.source.pairs().unwrap_or_default();
    let most = pairs.saturating_mul(8).saturating_add(MOST_HEADER);
    let bytes = input::read(&path, most).map_err(|error| refused(&error.to_string()))?;
    let (scores, answers) = parse(&bytes).ok_or_else(|| refused("it has no scores of answers"))?;
    if answers != identity(setup)? || scores.len() as u64 != 2 * pairs {
        return Err(refused("its scores are of other answers"));
    }
    match checkpoint.reference_sha256() {
        Some(written) if written != sha256(&scores) => {
            return Err(refused("it is damaged: the SHA-256 of its scores is not the checkpoint's"));
        }
        Some(_) => {}
        None => tracing::warn!(
            "{}: it cannot be verified: an earlier version wrote the checkpoint, without its SHA-256",
            path.display()
        ),
    }
    setup.reference = Some(scores.into());
    Ok(())
}

/// Returns the hash of the scores that a checkpoint stores: SHA-256 over their little-endian bits.
pub(crate) fn sha256(scores: &[f32]) -> String {
    let mut digest = Sha256::new();
    scores.iter().for_each(|score| digest.update(score.to_le_bytes()));
    hexadecimal(&digest.finalize())
}

/// Returns the SHA-256 of the answers; empty if the dataset has none.
fn identity(setup: &Setup) -> Result<String> {
    Ok(setup.dataset.mark()?.map_or_else(String::new, |mark| mark.samples_sha256.clone()))
}

fn write(path: &Path, setup: &Setup, scores: &Arc<[f32]>) -> Result<()> {
    let mut header = json!({
        ARRAY: {"dtype": "F32", "shape": [scores.len() / 2, 2], "data_offsets": [0, 4 * scores.len()]},
        "__metadata__": {"answers_sha256": identity(setup)?},
    });
    header.sort_all_objects();
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(scores.iter().flat_map(|score| score.to_le_bytes()));
    Ok(atomic_write(path, &bytes)?)
}

/// Parses a file. Returns its scores and the hash of the answers they belong to.
fn parse(bytes: &[u8]) -> Option<(Vec<f32>, String)> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (header, data) = rest.split_at_checked(length)?;
    let header: Value = serde_json::from_slice(header).ok()?;
    let (values, more) = data.as_chunks::<4>();
    if header[ARRAY]["data_offsets"] != json!([0, data.len()]) || !more.is_empty() {
        return None;
    }
    let identity = header["__metadata__"]["answers_sha256"].as_str()?.to_owned();
    Some((values.iter().map(|value| f32::from_le_bytes(*value)).collect(), identity))
}
