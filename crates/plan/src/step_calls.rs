//! The calls of a training step, logged by the worker on Meta.

use collective::Communicator;
use device::CallLog;
use parallel::pipeline::PlanWork;
use worker::{Setup, Worker};

use crate::error::Result;
use crate::plan::work_of_each;

/// Steps before the logged one. In the first, operators write tables of addresses that later ones keep.
const EARLIER_STEPS: u64 = 1;

/// Returns the calls that rank `rank` makes in a step, after the first steps of a run. `setup` is a run on a
/// Meta device that imitates a GPU; of other devices the log is empty.
///
/// # Errors
/// Errors of the run, among them out of memory.
pub fn step_calls(setup: &Setup, rank: usize) -> Result<CallLog> {
    let plan_work = setup.plan_work.unwrap_or(work_of_each(1, 1));
    let plan_work = Some(PlanWork { skips_from: 0, ..plan_work });
    let setup = Setup { history: 0, plan_work, ..setup.on_meta() };
    let communicator = Communicator::counted(rank, setup.config.world_size());
    let mut worker = Worker::new(&setup, communicator)?;
    let device = worker.device().clone();
    let first = setup.first_step();
    for step in first..first + EARLIER_STEPS {
        device.begin_log();
        worker.step(step)?;
    }
    device.begin_log();
    worker.step(first + EARLIER_STEPS)?;
    Ok(device.end_log())
}
