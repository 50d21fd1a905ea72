//! The devices of this machine, on which one test body runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use device::{Description, Device, DeviceOptions};
use system::skipped::{self, Need};

/// Returns whether there is a GPU, and reports the test as skipped there if there is none.
pub(crate) fn gpu() -> bool {
    match device::cuda::availability() {
        Ok(_) => true,
        Err(why) => {
            skipped::report(Need::Gpu, &why.to_string());
            false
        }
    }
}

/// Returns the number of ranks that can have a GPU of their own, which several do only with NCCL.
pub(crate) fn own_gpus() -> usize {
    let gpus = device::cuda::availability().map_or(0, |gpus| gpus.len());
    if collective::nccl::is_there() { gpus } else { gpus.min(1) }
}

/// Waits until no other job of this process is on GPUs, and keeps others waiting until it is dropped.
///
/// Two at once have stopped each other: probably a kernel that waits for another rank held up, in a queue of
/// the GPU, the kernels that this rank waits for. And a job beside one that captures a step can make its
/// libraries' calls fail.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static GPUS: Mutex<()> = Mutex::new(());
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Devices that compute: the host, and a GPU if there is one.
pub(crate) fn computing() -> Vec<Device> {
    let options = DeviceOptions::default();
    let mut devices = vec![Device::cpu(0, &options).unwrap()];
    if gpu() {
        devices.push(Device::cuda(0, 0, tensor::ops::FAMILIES, &options).unwrap());
    }
    devices
}

/// [`computing`] devices, and a Meta device that imitates each.
pub(crate) fn all() -> Vec<Device> {
    let imitate = |description: Description| Device::meta(0, description, &DeviceOptions::default()).unwrap();
    let real = computing();
    let imitations: Vec<_> = real.iter().map(|device| imitate(device.description().clone())).collect();
    real.into_iter().chain(imitations).collect()
}
