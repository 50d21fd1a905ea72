//! The model FLOPs of a step and the rate of its devices, for the model FLOPs utilization (MFU).

use config::{Parallel, RecomputePolicy, RunConfig};
use device::{DType, Description};
use worker::dataset::Dataset;
use worker::{Placement, Setup};

use crate::costs::with_recompute;
use crate::error::Result;
use crate::imitated::PlanDevice;
use crate::measure;
use crate::rates::DeviceRates;

/// Work of a step, and the rate of the devices that compute it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepWork {
    /// FLOPs of matmuls and attention in the model's forward and backward passes over the global batch,
    /// without recomputation.
    pub flops: f64,
    /// FLOP/s of large matmuls in the run's precision, summed over all devices of the run.
    pub rate: f64,
}

impl StepWork {
    /// Counts the work of a step on Meta; `None` for devices of unknown rate, such as a CPU.
    pub fn from_setup(setup: &Setup) -> Result<Option<Self>> {
        let Placement::Cuda(gpus) = &setup.placement else { return Ok(None) };
        let device = PlanDevice::of_model(&gpus.description.model)?;
        // The rate of matmuls in TF32 is not measured.
        let measured = |_: &DeviceRates| !setup.config.precision.tf32;
        let rates = device.and_then(|device| device.rates).filter(measured);
        rates.map(|rates| Self::at(&setup.config, &setup.dataset, &gpus.description, &rates)).transpose()
    }

    /// Counts the work of a step on devices with these rates.
    pub(crate) fn at(
        config: &RunConfig,
        dataset: &Dataset,
        description: &Description,
        rates: &DeviceRates,
    ) -> Result<Self> {
        let whole = with_recompute(&undivided(config)?, RecomputePolicy::None);
        let lengths = dataset.source.lengths().map(|lengths| lengths.shares());
        let datasets = match lengths {
            Some(lengths) => {
                lengths.into_iter().map(|(length, share)| (dataset.at_length(length), share)).collect()
            }
            None => vec![(dataset.clone(), 1.0)],
        };
        let mut micro_batch = 0.0;
        for (dataset, share) in datasets {
            let layers = measure::layers(&whole, &dataset, description)?;
            micro_batch += share * layers.iter().flat_map(|layer| layer.flops).sum::<u64>() as f64;
        }
        let rate = match config.precision.compute {
            DType::F32 if config.precision.tf32 => rates.tf32(),
            DType::F32 => rates.flops_f32,
            _ => rates.flops_bf16,
        };
        Ok(StepWork {
            flops: micro_batch * config.train.micro_batches() as f64,
            rate: rate * config.world_size() as f64,
        })
    }

    /// Returns the model FLOPs utilization of a step that takes `seconds`.
    #[must_use]
    pub fn mfu(&self, seconds: f64) -> f64 {
        self.flops / (self.rate * seconds)
    }
}

/// Returns the configuration without tensor and context parallelism.
fn undivided(config: &RunConfig) -> Result<RunConfig> {
    let lanes = [Parallel::tensor_lanes, Parallel::context_lanes];
    let keys = [Parallel::tensor, Parallel::context].into_iter().chain(lanes);
    Ok(config.with(&keys.map(|key| format!("{key}=1")).collect::<Vec<_>>())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overhead::DeviceRanks;
    use worker::dataset::{self, DataScope};

    #[test]
    fn the_work_of_a_step_is_that_of_its_matmuls() {
        let text = include_str!("../../../launch/configs/gpt2-124m.toml");
        let sets = ["parallel.data=2", "memory.recompute=block", "precision.compute=bf16"].map(str::to_owned);
        let config = RunConfig::parse(text, "124m", std::path::Path::new("/"), &sets).unwrap();
        let shipped = PlanDevice::of_model("NVIDIA H200").unwrap().unwrap();
        let rates = shipped.rates.clone().unwrap();
        let description = shipped.description(DeviceRanks::CONNECTED);
        let dataset = dataset::open(&config, DataScope::Shapes).unwrap();
        let work = StepWork::at(&config, &dataset, &description, &rates).unwrap();
        let [layers, width, context, vocabulary] = [12.0, 768.0, 1024.0, 50304.0];
        let weights = 2.0 * (12.0 * layers * width * width + width * vocabulary);
        // Causal attention computes about half of its matrix.
        let attention = 2.0 * layers * context * width;
        let tokens = (config.train.global_batch_size * 1024) as f64;
        let expected = 3.0 * tokens * (weights + attention);
        assert!((work.flops / expected - 1.0).abs() < 0.02, "{work:?}, {expected}");
        assert_eq!(work.rate, 2.0 * rates.flops_bf16);
        assert!((work.mfu(work.flops / work.rate) - 1.0).abs() < 1e-12);
        assert!(PlanDevice::of_model("another").unwrap().is_none());
    }
}
