//! The device of a plan.

use std::path::PathBuf;

use device::cuda;

use crate::error::{PlanError, Result};
use crate::imitated::PlanDevice;
use crate::overhead::DeviceRanks;
use telemetry::units::grouped;
use worker::setup::placement::{DeviceChoice, describe};

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
    /// The device whose description in the repository has this name.
    Named(&'static str),
}

impl PlanTarget {
    /// Parses the argument: the name of a device, or a file.
    pub fn from_argument(text: &str) -> Result<Self> {
        if text.ends_with(".toml") {
            return Ok(PlanTarget::File(PathBuf::from(text)));
        }
        if let Ok(choice) = DeviceChoice::from_name(text) {
            return Ok(PlanTarget::AtHand(choice));
        }
        let refused = |reason: &str, names: &[&str], rest: &str| {
            Err(PlanError::Refused(format!("--device {text}: {reason} {}{rest}", names.join(", "))))
        };
        match &PlanDevice::names_spelled(text)?[..] {
            [name] => Ok(PlanTarget::Named(name)),
            [] => refused(
                "unknown device: write auto, cpu, cuda or meta, or for a GPU that is not here",
                &PlanDevice::names().collect::<Vec<_>>(),
                ", or the file of a description",
            ),
            several => refused("several devices are called so: write one of", several, ""),
        }
    }

    /// Returns the device, with `capacity` total bytes if there is one.
    ///
    /// # Errors
    /// An invalid file, a capacity that leaves nothing for these ranks, a GPU that does not answer.
    pub fn device(&self, capacity: Option<u64>, ranks: DeviceRanks) -> Result<PlanDevice> {
        let gpu = cuda::availability();
        let mut device = match self {
            PlanTarget::File(path) => PlanDevice::load(path)?,
            PlanTarget::Named(name) => {
                PlanDevice::named(name)?.ok_or_else(|| PlanError::Refused(format!("no device {name}")))?
            }
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
