//! The calls of a training step, logged by the worker on Meta.

use collective::Communicator;
use device::{CallLog, Description};
use parallel::pipeline::PlanWork;
use worker::{Placement, Setup, Worker};

use crate::error::Result;
use crate::imitated::PlanDevice;
use crate::plan::work_of_each;

/// Number of steps before the logged one. In the first, operators build address tables that later steps
/// reuse.
const EARLIER_STEPS: u64 = 1;

/// Returns the setup on a Meta device that imitates GPUs, in hosts as large as `device`'s. They can access
/// each other's memory if such GPUs are usually connected by NVLink. Memory does not depend on it.
#[must_use]
pub fn with_peers(setup: &Setup, device: &PlanDevice) -> Setup {
    let meta = setup.on_meta();
    let description = Description { peers: device.peers(), ..meta.placement.description() };
    Setup { placement: Placement::Meta(description), ..meta }
}

/// Returns the calls that rank `rank` makes in a step after the first steps of a run. `setup` must be on a
/// Meta device that imitates a GPU; for other devices the log is empty.
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
