//! Devices and operands shared by several test files.

use device::{Category, Device, DeviceOptions};
use tensor::{Shape, Tensor};

pub(crate) fn cpu() -> Device {
    Device::cpu(0, &DeviceOptions::default()).unwrap()
}

/// Returns the host, and a GPU if there is one.
pub(crate) fn devices() -> Vec<Device> {
    let mut devices = vec![cpu()];
    match device::cuda::availability() {
        Ok(_) => {
            devices.push(Device::cuda(0, 0, tensor::ops::FAMILIES, &DeviceOptions::default()).unwrap());
        }
        Err(why) => system::skipped::report(system::skipped::Need::Gpu, &why.to_string()),
    }
    devices
}

/// Returns values between −1 and 1, a different pattern for each seed.
pub(crate) fn wave(elements: usize, seed: usize) -> Vec<f32> {
    (0..elements).map(|i| ((i as f32 * 1.7 + seed as f32) * 0.7).sin()).collect()
}

/// Creates a tensor of [`wave`] values.
pub(crate) fn tensor(device: &Device, shape: impl Into<Shape>, seed: usize) -> Tensor {
    let shape = shape.into();
    Tensor::from_host(device, &wave(shape.elements(), seed), shape, Category::Input).unwrap()
}
