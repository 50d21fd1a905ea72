//! Worlds of threads with a GPU each, connected by NCCL.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use collective::threads::{Options, RunError, run};
use collective::{Collective, Communicator, nccl};
use device::{Device, DeviceOptions};
use system::skipped::{self, Need};

use super::{Failed, Outcome};

/// The largest world size.
const LARGEST: usize = 4;
/// Timeout of ranks in tests without failures.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Kinds of driver allocation. NCCL must support all.
pub(crate) const SETTINGS: [&str; 2] = ["", "expandable_segments:True"];

/// Exclusive use of this host's GPUs by one test: kernels that wait for each other need them exclusively.
pub(crate) struct Gpus {
    pub(crate) largest_world: usize,
    _alone: MutexGuard<'static, ()>,
}

static GPUS: Mutex<()> = Mutex::new(());

/// Returns the GPUs, one per rank; `None` without two GPUs or NCCL, with the reason on standard error.
pub(crate) fn gpus() -> Option<Gpus> {
    let skipped = |why: String| {
        skipped::report(Need::Gpu, &why);
        None
    };
    let count = match device::cuda::availability() {
        Ok(gpus) => gpus.len(),
        Err(why) => return skipped(why.to_string()),
    };
    if count < 2 {
        return skipped(format!("there is {count} GPU; two are needed"));
    }
    if !nccl::is_there() {
        return skipped("libnccl.so cannot be opened".to_owned());
    }
    let alone = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Gpus { largest_world: count.min(LARGEST), _alone: alone })
}

pub(crate) fn gpu(rank: usize, ordinal: usize, settings: &str) -> Outcome<Device> {
    let settings = memory::Settings::parse(settings).map_err(|error| Failed::Other(error.to_string()))?;
    Ok(Device::cuda(
        rank,
        ordinal,
        tensor::ops::FAMILIES,
        &DeviceOptions { settings, ..DeviceOptions::default() },
    )?)
}

/// Runs a body as every rank of a world with this timeout.
pub(crate) fn run_on_gpus<T: Send + 'static>(
    world_size: usize,
    timeout: Duration,
    settings: &'static str,
    body: impl Fn(&mut Communicator, &Device) -> Outcome<T> + Send + Sync + 'static,
) -> Result<Vec<T>, RunError<Failed>> {
    let options = Options { timeout: PATIENCE, grace: Duration::from_secs(20) };
    run(world_size, options, move |communicator| {
        let device = gpu(communicator.rank(), communicator.rank(), settings)?;
        let mut communicator = communicator.over_nccl(&device, timeout)?;
        communicator.group.warm_up(&Collective::everything(world_size))?;
        body(&mut communicator, &device)
    })
}
