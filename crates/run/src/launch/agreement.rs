//! The agreement of a run's processes before its ranks start, in order: the state to resume, data and
//! settings, recomputation, planned memory, and the run directory.

use std::sync::Arc;

use config::RunConfig;
use plan::recompute;
use plan::roles::Plans;
use worker::{Placement, Setup};

use super::plans::plan_ranks;
use super::preparation::{self, complete, left_out, open_directory};
use crate::error::{Result, RunError};
use crate::memory_states;
use crate::newest_intact::{self, NewestIntact};
use crate::options::RunOptions;
use crate::restarts;
use crate::resume::Resumption;
use crate::run_directory::RunDirectory;
use crate::shared_memory;
use crate::startup::Startup;
use crate::train_report::TrainReport;

/// A run that is ready to start its ranks.
pub(super) struct Launch {
    pub(super) setup: Setup,
    pub(super) directory: RunDirectory,
    /// Memory plans of all ranks on rank 0; empty elsewhere.
    pub(super) plans: Plans,
}

/// The result of the agreement.
pub(super) enum Agreed {
    /// The ranks can start.
    Train(Box<Launch>),
    /// The run to resume is already complete. Rank 0 has its report.
    Complete(Option<Box<TrainReport>>),
}

/// Runs every step of the agreement with the other processes of the job.
///
/// # Errors
/// Any process fails, or the run does not fit in memory.
pub(super) fn reach(startup: &mut Startup, config: RunConfig, options: &RunOptions) -> Result<Agreed> {
    let found = find_state(startup, options)?;
    startup.begins("open its data and what it goes on from");
    let prepared = preparation::prepare(startup, config, options, found.as_ref());
    let (setup, resumption) = startup.agree(prepared)?;
    options.interrupt.end_preparation();
    startup.begins("tell its data and settings");
    let same = startup.check_same(&setup, &options.shared());
    startup.agree(same)?;
    let is_first = startup.rank() == 0;
    let complete = if is_first { complete(&setup, options) } else { Ok(None) };
    let complete = startup.agree(complete)?;
    let is_complete = complete.as_ref().map_or("", |_| "complete").to_owned();
    if !startup.of_rank_zero(is_complete)?.is_empty() {
        return Ok(Agreed::Complete(complete.map(Box::new)));
    }
    startup.begins("read the spikes that it has met");
    let left_out = startup.agree(left_out(&setup, options, is_first))?;
    let left_out = startup.of_rank_zero(left_out)?;
    let setup = settle_recompute(startup, setup)?;
    let (mut setup, plans) = plan(startup, setup, options)?;
    setup.left_out = Arc::new(left_out.split_whitespace().filter_map(|step| step.parse().ok()).collect());
    let directory = share_directory(startup, &setup, options, resumption)?;
    Ok(Agreed::Train(Box::new(Launch { setup, directory, plans })))
}

/// Finds the newest intact state of a run that its launcher restarted.
fn find_state(startup: &mut Startup, options: &RunOptions) -> Result<Option<NewestIntact>> {
    startup.begins("complete the states in memory");
    let memory = match memory_states::of_process().filter(|_| options.resume) {
        Some(directory) => memory_states::complete(startup, &directory)?,
        // Ranks may have other options, which is reported below.
        None => None,
    };
    match options.run_dir.as_deref().filter(|_| options.resume && restarts::is_restarted()) {
        Some(run_dir) if options.step_to_resume().is_none() => {
            startup.begins("find the newest intact state");
            newest_intact::find(startup, run_dir, memory.as_ref())
        }
        _ => Ok(None),
    }
}

/// Chooses on rank 0 which activations to recompute, and shares the choice.
fn settle_recompute(startup: &mut Startup, setup: Setup) -> Result<Setup> {
    startup.begins("choose what is computed again");
    let settled = if startup.rank() == 0 { recompute::settle(setup) } else { Ok(setup) };
    let setup = startup.agree(settled.map_err(RunError::from))?;
    let chosen = startup.of_rank_zero(recompute::encode(&setup.config.memory))?;
    Ok(recompute::adopt(setup, &chosen)?)
}

/// Plans the ranks' memory. Returns the setup with the plans of this process's ranks, and on rank 0 also all
/// plans.
fn plan(startup: &mut Startup, setup: Setup, options: &RunOptions) -> Result<(Setup, Plans)> {
    startup.begins("plan its memory");
    let shared = match setup.placement {
        Placement::Cpu => shared_memory::find(startup)?,
        _ => Vec::new(),
    };
    let planned = match options.no_plan {
        true => Ok(Default::default()),
        false => plan_ranks(startup, &setup, shared),
    };
    let (plans, expected) = startup.agree(planned)?;
    // Plans are made of many small allocations, which the run would otherwise keep.
    device::heap::return_free_pages();
    Ok((setup.expecting(expected), plans))
}

/// Opens the run directory on rank 0, and sends its path to the other ranks.
fn share_directory(
    startup: &mut Startup,
    setup: &Setup,
    options: &RunOptions,
    resumption: Option<Resumption>,
) -> Result<RunDirectory> {
    startup.begins("open the run directory");
    let directory = match startup.rank() {
        0 => open_directory(setup, options, resumption).map(Some),
        _ => Ok(None),
    };
    let directory = startup.agree(directory)?;
    startup.share_directory(directory)
}
