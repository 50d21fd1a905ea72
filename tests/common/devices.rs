//! Devices of this machine, on which tests run.

use std::sync::{Mutex, MutexGuard, PoisonError};

use device::{Description, Device, DeviceOptions};
use system::skipped::{self, Need};

/// Returns whether there is a GPU; if not, reports the test as skipped.
pub(crate) fn gpu() -> bool {
    match device::cuda::availability() {
        Ok(_) => true,
        Err(why) => {
            skipped::report(Need::Gpu, &why.to_string());
            false
        }
    }
}

/// Returns how many ranks can each have their own GPU; more than one needs NCCL.
pub(crate) fn own_gpus() -> usize {
    let gpus = device::cuda::availability().map_or(0, |gpus| gpus.len());
    if collective::nccl::is_there() { gpus } else { gpus.min(1) }
}

/// Waits until no other job of this process uses GPUs, and blocks others until the guard is dropped.
///
/// Two concurrent jobs have deadlocked: probably a kernel that waits for another rank blocked, in a GPU's
/// queue, the kernels that this rank waits for. A job beside one that captures a step can also make its
/// library calls fail.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static GPUS: Mutex<()> = Mutex::new(());
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the devices that compute: the CPU, and a GPU if there is one.
pub(crate) fn computing() -> Vec<Device> {
    let options = DeviceOptions::default();
    let mut devices = vec![Device::cpu(0, &options).unwrap()];
    if gpu() {
        devices.push(Device::cuda(0, 0, tensor::ops::FAMILIES, &options).unwrap());
    }
    devices
}

/// Returns the [`computing`] devices, and a Meta device that imitates each.
pub(crate) fn all() -> Vec<Device> {
    let imitate = |description: Description| Device::meta(0, description, &DeviceOptions::default()).unwrap();
    let real = computing();
    let imitations: Vec<_> = real.iter().map(|device| imitate(device.description().clone())).collect();
    real.into_iter().chain(imitations).collect()
}
