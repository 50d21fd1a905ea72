//! The newest intact state of a job that restarts automatically. No user watches such a job, so a damaged
//! checkpoint is skipped with a message. A run that a user resumes is refused instead.

use std::path::Path;

use checkpoint::Checkpoint;
use system::terminal;

use crate::error::{Result, RunError};
use crate::memory_states::InMemory;
use crate::startup::Startup;

/// The state from which all ranks of a job continue.
#[derive(Clone, Debug)]
pub(crate) struct NewestIntact {
    /// The state. This process has verified a share of its files.
    pub(crate) checkpoint: Checkpoint,
    /// One sentence for each newer checkpoint that is damaged.
    pub(crate) damage: Vec<String>,
}

/// Returns the newest intact state of the run, from `run_dir` or from the `memory` of the job's hosts; `None`
/// if there is no state at all. Every rank must call this, and each verifies a share of the files.
///
/// # Errors
/// Every state is damaged, a directory cannot be listed, or communication fails.
pub(crate) fn find(
    startup: &mut Startup,
    run_dir: &Path,
    memory: Option<&InMemory>,
) -> Result<Option<NewestIntact>> {
    let listed = startup.agree(checkpoint::list(run_dir).map_err(RunError::from))?;
    let steps: Vec<String> = listed.iter().rev().map(|(step, _)| step.to_string()).collect();
    // One list for all: a rank on another host may not see the newest checkpoint yet.
    let steps = startup.of_rank_zero(steps.join(" "))?;
    let mut damage = Vec::new();
    for step in steps.split_whitespace().filter_map(|step| step.parse().ok()) {
        if memory.is_some_and(|memory| memory.checkpoint.step() > step) {
            break;
        }
        match open_together(startup, run_dir, step)? {
            Ok(checkpoint) => return Ok(Some(announced(startup, checkpoint, damage))),
            Err(reason) => damage.push(format!("the checkpoint of step {step} is damaged: {reason}")),
        }
    }
    match memory {
        Some(memory) => Ok(Some(announced(startup, memory.checkpoint.clone(), damage))),
        None if damage.is_empty() => Ok(None),
        None => {
            let text = format!("{}; no older checkpoint is intact", damage.join("; "));
            startup.agree(Err(RunError::Refused(text)))
        }
    }
}

/// Opens a checkpoint on all ranks. Returns the reason if one of them could not.
fn open_together(
    startup: &mut Startup,
    run_dir: &Path,
    step: u64,
) -> Result<std::result::Result<Checkpoint, String>> {
    let opened = checkpoint::find_share(run_dir, Some(step), startup.share());
    let own = opened.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let reason = startup.of_all(&own)?.into_iter().find(|reason| !reason.is_empty());
    Ok(opened.map_err(|error| error.to_string()).and_then(|checkpoint| reason.map_or(Ok(checkpoint), Err)))
}

fn announced(startup: &Startup, checkpoint: Checkpoint, damage: Vec<String>) -> NewestIntact {
    if startup.rank() == 0 {
        let step = checkpoint.step();
        damage
            .iter()
            .for_each(|damage| terminal::say(&format!("plimsoll: {damage}: going on from step {step}")));
    }
    NewestIntact { checkpoint, damage }
}
