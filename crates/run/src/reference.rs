//! `reference_scores.safetensors` in a run directory: ln p of every answer by the model as it was before the
//! first step, of each pair of the chosen and of the rejected one. A run computes them once, and reads them
//! when it is resumed.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use system::input;
use telemetry::run_files::atomic_write;

use crate::answering::while_answering;
use crate::error::{Result, RunError};
use telemetry::step_trace::RunPart;
use worker::{Setup, Worker, build};

/// The name of the file in a run directory.
pub(crate) const FILE: &str = "reference_scores.safetensors";
/// The most bytes of the file.
const MOST_BYTES: u64 = 64 << 30;
/// The name of its array.
const ARRAY: &str = "scores";

/// Computes the scores of all answers, and writes them to the run directory. All ranks call this.
///
/// # Errors
/// Errors of the passes; a file that cannot be written.
pub(crate) fn score(worker: &mut Worker, run_dir: &Path) -> Result<()> {
    worker.score_reference()?;
    worker.check_plan(RunPart::Reference, 0)?;
    let is_written = worker.grid().rank() == 0 && !worker.device().is_meta();
    let scores = worker.reference_scores().filter(|_| is_written);
    let (path, setup) = (run_dir.join(FILE), worker.setup().clone());
    let write = scores.map(|scores| move || write(&path, &setup, &scores));
    while_answering(worker.control(), write)?.transpose()?;
    Ok(())
}

/// Returns the setup of a resumed run with the scores of its run directory, if its loss needs them.
///
/// # Errors
/// A file that is missing, cannot be read, or has the scores of other answers.
pub(crate) fn read(setup: &mut Setup, run_dir: &Path) -> Result<()> {
    if !build::objective(&setup.config).is_some_and(|objective| objective.has_reference()) {
        return Ok(());
    }
    let path = run_dir.join(FILE);
    let refused = |reason: &str| {
        RunError::Refused(format!(
            "{}: {reason}; a resumed run needs the scores that it computed at its start",
            path.display()
        ))
    };
    let bytes = input::read(&path, MOST_BYTES).map_err(|error| refused(&error.to_string()))?;
    let scores = parse(&bytes).ok_or_else(|| refused("it has no scores of answers"))?;
    let pairs = setup.dataset.source.pairs().unwrap_or_default();
    if scores.1 != identity(setup)? || scores.0.len() as u64 != 2 * pairs {
        return Err(refused("its scores are of other answers"));
    }
    setup.reference = Some(scores.0.into());
    Ok(())
}

/// The identity of the answers.
fn identity(setup: &Setup) -> Result<String> {
    Ok(setup.dataset.mark()?.map_or_else(String::new, |mark| mark.samples_sha256.clone()))
}

fn write(path: &Path, setup: &Setup, scores: &Arc<[f32]>) -> Result<()> {
    let header = json!({
        ARRAY: {"dtype": "F32", "shape": [scores.len() / 2, 2], "data_offsets": [0, 4 * scores.len()]},
        "__metadata__": {"answers_sha256": identity(setup)?},
    });
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(scores.iter().flat_map(|score| score.to_le_bytes()));
    Ok(atomic_write(path, &bytes)?)
}

/// Returns the scores of a file, and the identity of their answers.
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
