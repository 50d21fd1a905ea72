//! The device that a plan is for.

use std::path::PathBuf;

use device::cuda;

use crate::error::{PlanError, Result};
use crate::imitated::PlanDevice;
use worker::placement::{DeviceChoice, describe};

/// The device to plan for.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The device.
    pub target: PlanTarget,
    /// Total bytes of the device, in place of its own.
    pub capacity: Option<u64>,
}

/// The device that a plan is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanTarget {
    /// The device at hand of that kind; for GPUs where there is none, the H200 that ships.
    AtHand(DeviceChoice),
    /// The device that a file describes.
    File(PathBuf),
}

impl PlanTarget {
    /// Parses the argument: the name of a device, or a file. Errors: another name.
    pub fn from_argument(text: &str) -> Result<Self> {
        match text.ends_with(".toml") {
            true => Ok(PlanTarget::File(PathBuf::from(text))),
            false => Ok(PlanTarget::AtHand(DeviceChoice::from_name(text)?)),
        }
    }

    /// The device, with `capacity` bytes in place of its own if that is given. Errors: a file that is wrong,
    /// a capacity that nothing is left of for a run, a GPU that does not answer.
    pub fn device(&self, capacity: Option<u64>) -> Result<PlanDevice> {
        let gpu = cuda::availability();
        let mut device = match self {
            PlanTarget::File(path) => PlanDevice::load(path)?,
            PlanTarget::AtHand(DeviceChoice::Cpu | DeviceChoice::Meta) => PlanDevice::host(),
            PlanTarget::AtHand(DeviceChoice::Auto) if gpu.is_err() => PlanDevice::host(),
            PlanTarget::AtHand(DeviceChoice::Cuda) if gpu.is_err() => PlanDevice::shipped()?,
            PlanTarget::AtHand(_) => PlanDevice::gpu(&describe(0)?)?,
        };
        if let Some(capacity) = capacity {
            let taken = device.description(true).taken_bytes;
            if capacity <= taken {
                return Err(PlanError::Refused(format!(
                    "--capacity: of {capacity} bytes a run takes {taken} before it allocates anything"
                )));
            }
            device.total_bytes = capacity;
        }
        Ok(device)
    }
}
