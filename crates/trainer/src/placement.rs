//! Which device each rank gets: what was asked for, held against what is there.

use device::cuda::{self, Found};
use device::{Description, Device, DeviceOptions};

use crate::config::RunConfig;
use crate::error::{Result, TrainError};
use crate::startup::Startup;

/// What to compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best that is there.
    #[default]
    Auto,
    /// The host.
    Cpu,
    /// GPUs.
    Cuda,
    /// Nothing: memory is counted and no number computed.
    Meta,
}

impl DeviceChoice {
    /// From the command line. Errors: a name that is none.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda),
            "meta" => Ok(DeviceChoice::Meta),
            other => Err(TrainError::Refused(format!(
                "--device {other}: auto, cpu, cuda and meta are the devices"
            ))),
        }
    }
}

/// What a worker's device is.
#[derive(Clone, Debug)]
pub enum Placement {
    /// The host.
    Cpu,
    /// GPUs of this host.
    Cuda(Gpus),
    /// Nothing, counting as the described device would.
    Meta(Description),
}

/// The GPUs of this process's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// The first rank of this process.
    pub first_rank: usize,
    /// The GPU of each rank of this process, from that one on.
    pub ordinals: Vec<usize>,
    /// What the first of them is.
    pub description: Description,
}

impl Placement {
    /// GPU `ordinal` for one rank. Errors: why there is none.
    pub fn one_gpu(ordinal: usize) -> Result<Self> {
        let description = cuda::describe(ordinal).map_err(|error| TrainError::Refused(error.to_string()))?;
        Ok(Placement::Cuda(Gpus { first_rank: 0, ordinals: vec![ordinal], description }))
    }

    /// The device of `rank`. Errors: settings that the allocator refuses, a GPU that does not start.
    pub(crate) fn device(&self, rank: usize, options: &DeviceOptions) -> Result<Device> {
        Ok(match self {
            Placement::Cpu => Device::cpu(rank, options)?,
            Placement::Cuda(gpus) => Device::cuda(rank, gpus.ordinal_of(rank), options)?,
            Placement::Meta(description) => Device::meta(rank, description.clone(), options)?,
        })
    }

    /// What the ranks run on, or imitate.
    pub(crate) fn description(&self) -> Description {
        match self {
            Placement::Cpu => Description::host(),
            Placement::Cuda(gpus) => gpus.description.clone(),
            Placement::Meta(description) => description.clone(),
        }
    }

    /// Whether numbers are computed nowhere.
    pub(crate) fn is_meta(&self) -> bool {
        matches!(self, Placement::Meta(_))
    }

    /// As in `summary.json`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Placement::Cpu => "cpu",
            Placement::Cuda(_) => "cuda",
            Placement::Meta(_) => "meta",
        }
    }
}

impl Gpus {
    fn ordinal_of(&self, rank: usize) -> usize {
        let index = rank.saturating_sub(self.first_rank);
        self.ordinals.get(index).copied().unwrap_or(0)
    }
}

/// Where a run's ranks go, and how that came about, in one sentence.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) placement: Placement,
    pub(crate) reason: String,
}

impl Placed {
    /// Finds a place for the ranks. With fewer GPUs than the configuration has ranks, and nobody who started or asked for
    /// that many, one rank does the work of all on the one GPU, in the same lanes, and so with the same bits.
    ///
    /// Errors: a device that was asked for by name and is not there; more ranks than GPUs.
    pub(crate) fn find(
        choice: DeviceChoice,
        config: &mut RunConfig,
        startup: &Startup,
        ranks: Option<usize>,
    ) -> Result<Self> {
        let found = match choice {
            DeviceChoice::Cpu => {
                return Ok(Placed { placement: Placement::Cpu, reason: "the CPU, as asked".to_owned() });
            }
            DeviceChoice::Meta => {
                let reason = "nothing: memory is counted and no number computed".to_owned();
                return Ok(Placed { placement: Placement::Meta(Description::host()), reason });
            }
            DeviceChoice::Auto => match cuda::availability() {
                Ok(found) => found,
                Err(why) => {
                    return Ok(Placed { placement: Placement::Cpu, reason: format!("the CPU: {why}") });
                }
            },
            DeviceChoice::Cuda => cuda::availability().map_err(|why| {
                TrainError::Refused(format!("--device cuda: {why}; --device cpu trains on the host"))
            })?,
        };
        let asked = startup.is_in_job() || ranks.is_some();
        on_gpus(&found, choice, config, asked)
    }
}

fn on_gpus(found: &[Found], choice: DeviceChoice, config: &mut RunConfig, asked: bool) -> Result<Placed> {
    let world_size = config.world_size();
    if asked && world_size > 1 {
        if choice == DeviceChoice::Auto {
            let reason = format!("the CPU: {world_size} ranks on GPUs are not built yet");
            return Ok(Placed { placement: Placement::Cpu, reason });
        }
        let text = format!("--device cuda: {world_size} ranks on GPUs are not built yet");
        return Err(TrainError::Refused(text));
    }
    let placement = Placement::one_gpu(0)?;
    let name = found.first().map_or("", |found| found.name.as_str());
    let mut reason = format!("GPU 0 of {}, {name}", found.len());
    if world_size > 1 {
        (config.parallel.data, config.parallel.pipeline) = (1, 1);
        reason += &format!(
            ": one rank does the work of the {world_size} that are configured, in {} lanes and so with the same bits",
            config.parallel.lanes
        );
    }
    Ok(Placed { placement, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(count: usize) -> Vec<Found> {
        (0..count).map(|ordinal| Found { ordinal, name: "some GPU".to_owned() }).collect()
    }

    #[test]
    fn names_of_devices() {
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
    fn more_ranks_than_gpus_that_somebody_asked_for_are_refused() {
        let mut config = RunConfig::quickstart(&[]).unwrap();
        let error = on_gpus(&found(1), DeviceChoice::Cuda, &mut config, true).unwrap_err();
        assert_eq!(error.exit_status(), 2);
    }
}
