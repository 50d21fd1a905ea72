//! The newest intact state of a job that is started again by itself. Nobody watches such a job, so it passes
//! over a damaged checkpoint with a message; a run that a user resumes is refused instead.

use std::path::Path;

use checkpoint::Checkpoint;
use system::terminal;

use crate::error::{Result, RunError};
use crate::memory_states::InMemory;
use crate::startup::Startup;

/// The state from which all ranks of a job go on.
#[derive(Clone, Debug)]
pub(crate) struct NewestIntact {
    /// The state, of which this process has verified a share.
    pub(crate) checkpoint: Checkpoint,
    /// The damage of newer checkpoints, in a sentence each.
    pub(crate) damage: Vec<String>,
}

/// Returns the newest state of the run in `run_dir`, or in the `memory` of the job's hosts, that is intact;
/// `None` if there is none at all. All ranks call this, and verify a share of the files each.
///
/// # Errors
/// Every state is damaged; a directory that cannot be listed; errors of the job.
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

/// Opens a checkpoint on all ranks, or returns the reason why one of them could not.
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
