//! The device of a plan.

use std::path::PathBuf;

use device::cuda;

use crate::error::{PlanError, Result};
use crate::imitated::PlanDevice;
use crate::overhead::DeviceRanks;
use telemetry::units::grouped;
use worker::placement::{DeviceChoice, describe};

/// Options of the device to plan for.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The device.
    pub target: PlanTarget,
    /// Total bytes of the device that replace its own.
    pub capacity: Option<u64>,
}

/// The device of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanTarget {
    /// A present device of that kind; for GPUs on a host without one, the shipped H200.
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

    /// Returns the device, with `capacity` total bytes if there is one. Errors: an invalid file, a capacity
    /// that leaves nothing for these ranks, a GPU that does not answer.
    pub fn device(&self, capacity: Option<u64>, ranks: DeviceRanks) -> Result<PlanDevice> {
        let gpu = cuda::availability();
        let mut device = match self {
            PlanTarget::File(path) => PlanDevice::load(path)?,
            PlanTarget::AtHand(DeviceChoice::Cpu | DeviceChoice::Meta) => PlanDevice::host(),
            PlanTarget::AtHand(DeviceChoice::Auto) if gpu.is_err() => PlanDevice::host(),
            PlanTarget::AtHand(DeviceChoice::Cuda) if gpu.is_err() => PlanDevice::shipped()?,
            PlanTarget::AtHand(_) => PlanDevice::gpu(&describe(0)?)?,
        };
        if let Some(capacity) = capacity {
            let taken = device.description(ranks).taken_bytes;
            if capacity <= taken {
                return Err(PlanError::Refused(format!(
                    "of a capacity of {} bytes a run takes {} before it allocates anything",
                    grouped(capacity),
                    grouped(taken)
                )));
            }
            device.total_bytes = capacity;
        }
        Ok(device)
    }
}
