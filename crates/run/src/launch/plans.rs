//! Memory plans of a run's ranks, and the check that they fit.

use std::sync::Arc;

use plan::remedy;
use plan::roles::{Plans, plan_all, plan_one, taken};
use plan::{Fit, RankForm, SharedMemory};
use planned::Expected;
use worker::{Placement, Setup};

use crate::error::Result;
use crate::startup::Startup;

/// Plans all ranks on rank 0, while each other process plans its own ranks. Returns all plans (rank 0 only)
/// and the expected memory of this process's ranks.
pub(super) fn plan_ranks(
    startup: &Startup,
    setup: &Setup,
    shared: Vec<SharedMemory>,
) -> Result<(Plans, Expected)> {
    if startup.rank() > 0 {
        let plan = plan_one(setup, startup.rank())?;
        return Ok((Plans::default(), Expected::from([(plan.rank, plan.parts)])));
    }
    let plans = plan_that_fits(startup, setup, shared)?;
    let expected = plans.by_rank().map(|(rank, plan)| (rank, Arc::clone(&plan.parts))).collect();
    Ok((plans, expected))
}

/// Plans every rank of a job whose hosts have these shared memories.
///
/// # Errors
/// Planning fails, or the run does not fit; the message then proposes the nearest run that would.
fn plan_that_fits(startup: &Startup, setup: &Setup, shared: Vec<SharedMemory>) -> Result<Plans> {
    let plans = plan_all(setup)?;
    // On Meta no host memory is used, and the ranks of a job may be on several hosts.
    let form = match &setup.placement {
        Placement::Cpu => startup.rank_form(),
        _ => RankForm::Processes { mpi: false },
    };
    let fit = Fit::from_plans(setup, &plans, taken(setup)?, form).in_shared(setup, &plans, shared);
    if !fit.fits {
        return Err(remedy::refusal(setup, &plans, &fit).into());
    }
    if matches!(setup.placement, Placement::Cpu) {
        tracing::info!("planned: {}", fit.figures());
    }
    if fit.retries {
        tracing::warn!("this run nearly fills its device: {fit}");
    }
    Ok(plans)
}
