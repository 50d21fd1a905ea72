//! Worlds of threads that share one GPU.

use std::io::Write;
use std::time::Duration;

use collective::threads::{Options, RunError, run};
use collective::{Collective, Communicator};
use device::Device;

use super::nccl::gpu;
use super::{Failed, Outcome, sum_exactly};

/// World sizes to check: with and without specialised kernels for sums.
pub(crate) const WORLDS: [usize; 5] = [2, 3, 4, 5, 8];

/// Returns whether there is a GPU; reports a missing one on standard error.
pub(crate) fn there_is_one() -> bool {
    match device::cuda::availability() {
        Ok(_) => true,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "skipped, on a shared GPU: {why}");
            false
        }
    }
}

/// Runs a body as every rank of a world on the first GPU, with this timeout.
pub(crate) fn run_on_one_gpu<T: Send + 'static>(
    world_size: usize,
    timeout: Duration,
    settings: &'static str,
    body: impl Fn(&mut Communicator, &Device) -> Outcome<T> + Send + Sync + 'static,
) -> Result<Vec<T>, RunError<Failed>> {
    let options = Options { timeout, grace: Duration::from_secs(20) };
    run(world_size, options, move |communicator| {
        sum_exactly();
        let device = gpu(communicator.rank(), 0, settings)?;
        let mut communicator = communicator.over_shared_gpu(&device)?;
        communicator.group.warm_up(&Collective::everything(world_size))?;
        body(&mut communicator, &device)
    })
}
