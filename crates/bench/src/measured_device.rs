//! Opens the device on which single calls are measured.

use device::{Device, DeviceOptions};
use worker::DeviceChoice;
use worker::setup::placement::Placement;

use crate::error::{BenchError, Result};

/// Opens the device to measure: the first GPU, or the CPU.
///
/// # Errors
/// There is no GPU, it fails to start, or the choice is Meta.
pub fn measured_device(choice: DeviceChoice) -> Result<Device> {
    let placement = match choice {
        DeviceChoice::Cuda => Placement::one_gpu(0)?,
        DeviceChoice::Auto if device::cuda::availability().is_ok() => Placement::one_gpu(0)?,
        DeviceChoice::Auto | DeviceChoice::Cpu => Placement::Cpu,
        DeviceChoice::Meta => {
            return Err(BenchError::Refused("--device meta: it computes nothing".to_owned()));
        }
    };
    Ok(placement.device(0, &DeviceOptions::default())?)
}
