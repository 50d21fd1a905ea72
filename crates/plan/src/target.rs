//! The device for which a run is planned.

use std::path::PathBuf;

use device::cuda;

use crate::error::{PlanError, Result};
use crate::imitated::PlanDevice;
use crate::overhead::DeviceRanks;
use telemetry::units::grouped;
use worker::setup::placement::{DeviceChoice, describe};

/// Options that select the device to plan for.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The device.
    pub target: PlanTarget,
    /// Total bytes that replace the device's own.
    pub capacity: Option<u64>,
}

/// A device to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanTarget {
    /// A real device of this kind; for GPUs on a host without one, the default H200.
    AtHand(DeviceChoice),
    /// The device described in a file.
    File(PathBuf),
    /// The device with this description in the repository.
    Named(&'static str),
}

impl PlanTarget {
    /// Parses the command-line argument: the name of a device, or a `.toml` file.
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

    /// Returns the device. `capacity` replaces its total bytes, if set.
    ///
    /// # Errors
    /// The file is invalid, the capacity leaves nothing for these ranks, or a GPU does not respond.
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
