//! The device of each rank.

use device::cuda;
use device::{Backend, Description, Device, DeviceOptions};

use crate::error::{Result, WorkerError};

/// The device that the user requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// GPUs if there are any, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// GPUs.
    Cuda,
    /// No device: memory is counted, but nothing is computed.
    Meta,
}

impl DeviceChoice {
    /// Parses a device name from the command line.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda),
            "meta" => Ok(DeviceChoice::Meta),
            other => Err(WorkerError::Refused(format!(
                "--device {other}: unknown device; the devices are auto, cpu, cuda and meta (`plimsoll plan` \
                 also takes the name of a GPU that is not here, such as h100-80gb)"
            ))),
        }
    }
}

/// The devices of a run's ranks.
#[derive(Clone, Debug)]
pub enum Placement {
    /// The CPU.
    Cpu,
    /// GPUs of this host.
    Cuda(Gpus),
    /// No device; memory is counted as on the described device.
    Meta(Description),
}

/// The GPUs assigned to this process's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// The first rank of this process.
    pub first_rank: usize,
    /// The GPU ordinal of each rank of this process, in rank order.
    pub ordinals: Vec<usize>,
    /// Description of the first GPU.
    pub description: Description,
}

impl Placement {
    /// Returns the placement of one rank on GPU `ordinal`.
    ///
    /// # Errors
    /// The GPU cannot be used.
    pub fn one_gpu(ordinal: usize) -> Result<Self> {
        Ok(Placement::Cuda(Gpus { first_rank: 0, ordinals: vec![ordinal], description: describe(ordinal)? }))
    }

    /// Opens the device of `rank`.
    ///
    /// # Errors
    /// The allocator refuses its settings, or the GPU does not start.
    pub fn device(&self, rank: usize, options: &DeviceOptions) -> Result<Device> {
        Ok(match self {
            Placement::Cpu => Device::cpu(rank, options)?,
            Placement::Cuda(gpus) => {
                Device::cuda(rank, gpus.ordinal_of(rank), tensor::ops::FAMILIES, options)?
            }
            Placement::Meta(description) => Device::meta(rank, description.clone(), options)?,
        })
    }

    /// Returns a placement with only the device of `rank`, for a world of one rank.
    pub fn alone(&self, rank: usize) -> Self {
        match self {
            Placement::Cuda(gpus) => {
                Placement::Cuda(Gpus { first_rank: 0, ordinals: vec![gpus.ordinal_of(rank)], ..gpus.clone() })
            }
            other => other.clone(),
        }
    }

    /// Returns the description of the ranks' device, or of the imitated device.
    pub fn description(&self) -> Description {
        match self {
            Placement::Cpu => Description::host(),
            Placement::Cuda(gpus) => gpus.description.clone(),
            Placement::Meta(description) => description.clone(),
        }
    }

    /// Returns whether ranks only count memory.
    pub fn is_meta(&self) -> bool {
        self.backend() == Backend::Meta
    }

    /// Returns the backend of the ranks' devices.
    pub fn backend(&self) -> Backend {
        match self {
            Placement::Cpu => Backend::Cpu,
            Placement::Cuda(_) => Backend::Cuda,
            Placement::Meta(_) => Backend::Meta,
        }
    }

    /// Returns the name of the backend, as in `summary.json`.
    pub fn name(&self) -> &'static str {
        self.backend().name()
    }
}

impl Gpus {
    /// Returns the GPU ordinal of `rank`.
    pub fn ordinal_of(&self, rank: usize) -> usize {
        let index = rank.saturating_sub(self.first_rank);
        self.ordinals.get(index).copied().unwrap_or(0)
    }
}

/// Describes GPU `ordinal`.
///
/// # Errors
/// There is no such GPU.
pub fn describe(ordinal: usize) -> Result<Description> {
    // Without the driver's library, its calls panic.
    cuda::availability().map_err(|why| WorkerError::Refused(format!("--device cuda: {why}")))?;
    cuda::describe(ordinal).map_err(|error| WorkerError::Refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_parsed() {
        for (name, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Cuda),
            ("meta", DeviceChoice::Meta),
        ] {
            assert_eq!(DeviceChoice::from_name(name).unwrap(), choice);
        }
        assert_eq!(DeviceChoice::from_name("gpu").unwrap_err().exit_status(), 2);
    }

    #[test]
    fn a_world_of_one_rank_keeps_the_device_of_the_rank() {
        let gpus = |first_rank: usize, ordinals: &[usize]| {
            Placement::Cuda(Gpus {
                first_rank,
                ordinals: ordinals.to_vec(),
                description: Description::host(),
            })
        };
        // Threads of one process, and a process of a job.
        for (placement, rank, ordinal) in
            [(gpus(0, &[0, 1, 2, 3]), 2, 2), (gpus(0, &[0]), 0, 0), (gpus(7, &[3]), 7, 3)]
        {
            let Placement::Cuda(own) = placement.alone(rank) else { panic!("{placement:?}") };
            assert_eq!((own.ordinals.as_slice(), own.ordinal_of(0)), (&[ordinal][..], ordinal));
        }
        assert!(matches!(Placement::Cpu.alone(1), Placement::Cpu));
    }
}
