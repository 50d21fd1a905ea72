//! A probe of a configuration: times the calls of its steps on the first GPU, in steps of some of its layers.
//!
//! Calls between the sizes of a description are predicted from their neighbours, and a step's own data, power
//! and clock make all its calls a little faster or slower than in other steps. The probe measures both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use config::RunConfig;
use device::LoggedCall;
use plan::{
    CallSize, CallSizes, DeviceRanks, MeasuredCalls, PlanDevice, predicted_calls, prepare_shapes, step_calls,
};
use worker::setup::placement::{DeviceChoice, Placement};
use worker::{Setup, is_out_of_memory};

use crate::calls_alone::{attention_of, calls_of, gpu_of};
use crate::error::Result;
use crate::measured_step::{by_kind, measure, predict, samples_of_step};
use crate::one_rank::on_one_rank;
use crate::options::BenchOptions;

/// Longest predicted step that runs whole, in seconds.
const LONGEST: f64 = 0.1;
/// Number of micro-batches of a longer one, and its smallest number of layers.
const MICRO_BATCHES: usize = 2;
const LAYERS: usize = 2;
/// One over the part of the layers that is added if they lack calls.
const GROWTH: usize = 4;
/// Smallest part of a step's predicted time for calls of one size that the layers must contain.
const LEAST_SHARE: f64 = 5e-3;
/// Families of kernels that depend on the layers, by the beginning of their names. Most others are as long as
/// their bytes.
const KERNELS: [&str; 2] = ["attention", "experts"];
/// Duration of the warm-up: a GPU at its power limit lowers its clock after some tenths of a second.
const WARM_UP: Duration = Duration::from_millis(500);
/// Number of warm-up steps, and of timed steps.
const WARM_UP_STEPS: u64 = 3;
const STEPS: u64 = 6;

/// The timed calls of a configuration.
#[derive(Clone, Debug)]
pub struct Probe {
    calls: Vec<MeasuredCalls>,
    /// Number of layers whose steps were timed; `None` if each call was timed alone.
    pub layers: Option<usize>,
}

impl Probe {
    /// Returns the number of timed kinds and sizes of calls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.iter().map(|calls| calls.samples.len()).sum()
    }

    /// Returns whether no calls were timed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the description with the timed calls.
    #[must_use]
    pub fn added_to(self, device: PlanDevice) -> PlanDevice {
        device.with_probed(self.calls)
    }
}

/// Times the calls of a configuration on the first GPU, whose model `device` describes: in steps of some or
/// all of its layers, or each call alone if steps do not fit or have too many calls. One rank makes the calls
/// of all ranks, for parts of layers and pieces of sequences are computed in the same way on any number.
///
/// # Errors
/// There is no such GPU, or it fails; the configuration cannot be planned.
pub fn probe(config: &RunConfig, device: &PlanDevice) -> Result<Probe> {
    gpu_of(device)?;
    for short in short_configs(config, device)? {
        match in_steps(short, device) {
            Err(error) if is_out_of_memory(&error) => {}
            // Steps of too many calls are not timed call by call.
            Ok(probe) if probe.is_empty() => {}
            Ok(probe) if config.parallel.tensor > 1 => {
                // Each rank calls attention for its own heads.
                let mut calls = attention_of(device, config)?;
                calls.extend(probe.calls);
                return Ok(Probe { calls, ..probe });
            }
            probe => return probe,
        }
    }
    Ok(Probe { calls: calls_of(device, config)?, layers: None })
}

/// Times the calls in steps of a configuration.
fn in_steps(config: RunConfig, device: &PlanDevice) -> Result<Probe> {
    let layers = Some(config.layers());
    let options = BenchOptions {
        device: DeviceChoice::Cuda,
        steps: STEPS,
        warm_up: WARM_UP_STEPS,
        warm_up_time: WARM_UP,
        profile: true,
        trace: None,
    };
    let predicted = predict(config.clone(), device)?;
    let step = measure(config, predicted.as_ref(), device, &options)?;
    Ok(Probe { calls: by_kind(samples_of_step(&step.calls, step.seconds, device)), layers })
}

/// Returns configurations of one rank with the same calls: one whose step has at most about the length
/// [`LONGEST`], and others with ever fewer layers, in case it does not fit.
fn short_configs(config: &RunConfig, device: &PlanDevice) -> Result<Vec<RunConfig>> {
    let seconds = |config: &RunConfig| -> Result<f64> {
        Ok(predict(config.clone(), device)?.map_or(0.0, |time| time.step_seconds))
    };
    let whole = on_one_rank(config, usize::MAX);
    let short = on_one_rank(config, MICRO_BATCHES);
    let needed = needed_calls(&short, device)?;
    let mut all = Vec::new();
    if seconds(&whole)? <= LONGEST {
        all.push(whole);
    }
    let part = (LONGEST / seconds(&short)?).min(1.0);
    let mut layers = ((part * short.layers() as f64).ceil() as usize).max(LAYERS);
    // Fewer layers may lack some calls.
    while all.is_empty() && layers < short.layers() {
        all.extend(with_layers(&short, layers, &needed, device)?);
        layers += layers.div_ceil(GROWTH);
    }
    if all.is_empty() {
        all.push(short.clone());
    }
    let mut layers = all.first().map_or(0, RunConfig::layers) / 2;
    while layers >= LAYERS {
        all.extend(with_layers(&short, layers, &needed, device)?);
        layers /= 2;
    }
    Ok(all)
}

/// Returns the configuration with this number of layers; `None` if the model cannot have it, or if its steps
/// lack calls that are needed.
fn with_layers(
    config: &RunConfig,
    layers: usize,
    needed: &BTreeSet<Sized>,
    device: &PlanDevice,
) -> Result<Option<RunConfig>> {
    let Ok(fewer) = config.with(&[format!("model.layers={layers}")]) else { return Ok(None) };
    Ok(needed.is_subset(&calls_of_layers(&fewer, device)?).then_some(fewer))
}

/// The kind and the bits of the size of a call.
type Sized = (String, [u64; 3]);

/// Returns the calls that depend on the layers and take a part of a step.
fn needed_calls(config: &RunConfig, device: &PlanDevice) -> Result<BTreeSet<Sized>> {
    let mut times: BTreeMap<Sized, f64> = BTreeMap::new();
    let sizes = call_sizes(config, device);
    for (call, seconds) in predicted_calls(&on_meta(config, device)?, device, 0)? {
        if let Some(size) = of_layers(&call, &sizes) {
            *times.entry(size).or_default() += seconds;
        }
    }
    let step: f64 = times.values().sum();
    let takes_time = |(_, seconds): &(Sized, f64)| *seconds > LEAST_SHARE * step;
    Ok(times.into_iter().filter(takes_time).map(|(size, _)| size).collect())
}

/// Returns the calls of a step that depend on the layers.
fn calls_of_layers(config: &RunConfig, device: &PlanDevice) -> Result<BTreeSet<Sized>> {
    let mut calls = BTreeSet::new();
    let sizes = call_sizes(config, device);
    step_calls(&on_meta(config, device)?, 0)?.for_each(|call| calls.extend(of_layers(call, &sizes)));
    Ok(calls)
}

fn on_meta(config: &RunConfig, device: &PlanDevice) -> Result<Setup> {
    let description = device.description(DeviceRanks::from_config(config));
    Ok(prepare_shapes(config.clone(), Placement::Meta(description))?)
}

fn call_sizes(config: &RunConfig, device: &PlanDevice) -> CallSizes {
    CallSizes::new(1, device.multiprocessors, config.precision.tf32)
}

/// Returns the kind and size of a call that depends on the layers.
fn of_layers(call: &LoggedCall, sizes: &CallSizes) -> Option<Sized> {
    let depends = match call {
        LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. } => true,
        LoggedCall::Kernel(kernel) => {
            KERNELS.iter().any(|family| kernel.function.family().name.starts_with(family))
        }
        _ => false,
    };
    let CallSize { kind, size } = sizes.size(call).filter(|_| depends)?;
    Some((kind, size.map(f64::to_bits)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_configs::{RandomRanks, random_configs};

    /// Returns the device of the tests, and registers the families of random configurations.
    fn h200() -> PlanDevice {
        vision::register().unwrap();
        PlanDevice::of_model("NVIDIA H200").unwrap().unwrap()
    }

    /// Draws configurations of all families.
    #[test]
    fn short_configurations_make_all_calls_that_take_time() {
        let device = h200();
        let mut shorter = 0;
        for drawn in random_configs(7, RandomRanks { ranks: 1, share_gpu: false }).take(10) {
            let config = drawn.config().unwrap();
            // Some are refused, as by layers that FP8 cannot divide.
            let Ok(short) = short_configs(&config, &device) else { continue };
            let needed = needed_calls(&on_one_rank(&config, MICRO_BATCHES), &device).unwrap();
            assert!(short.windows(2).all(|two| two[0].layers() > two[1].layers()), "{:?}", drawn.sets);
            for short in &short {
                shorter += usize::from(short.layers() < config.layers());
                let made = calls_of_layers(short, &device).unwrap();
                assert!(needed.len() > 4 && needed.is_subset(&made), "{:?}", drawn.sets);
            }
        }
        assert!(shorter >= 3, "{shorter}");
    }

    #[test]
    fn one_rank_makes_the_calls_of_all_ranks() {
        let device = h200();
        let mut compared = 0;
        for drawn in random_configs(643, RandomRanks { ranks: 2, share_gpu: false }).take(16) {
            let config = drawn.config().unwrap();
            let Ok(needed) = needed_calls(&config, &device) else { continue };
            let made = calls_of_layers(&on_one_rank(&config, usize::MAX), &device).unwrap();
            for (kind, size) in needed.difference(&made) {
                // Attention of a rank's own heads is timed alone.
                let is_of_heads = config.parallel.tensor > 1 && kind.starts_with("attention");
                assert!(is_of_heads, "{kind} {:?}, {:?}", size.map(f64::from_bits), drawn.sets);
            }
            compared += usize::from(config.parallel.tensor * config.parallel.context > 1);
        }
        assert!(compared >= 4, "{compared}");
    }

    #[test]
    fn every_grid_can_be_probed_on_one_rank() {
        const TEXT: &str = "[model]\nkind = \"llama\"\nlayers = 8\nheads = 4\nkey_value_heads = 4\n\
                            width = 128\nfeed_forward = 256\ncontext = 128\nvocabulary = 512\n\
                            [data]\nkind = \"synthetic\"\n[precision]\ncompute = \"bf16\"\n\
                            [train]\nsteps = 10\nmicro_batch_size = 1\nglobal_batch_size = 8\n";
        let device = h200();
        for sets in [
            &["pipeline=2", "partition=[3,5]"][..],
            &["pipeline=2", "schedule=interleaved", "chunks=2"],
            &["pipeline=2", "schedule=zero-bubble", "ranks_per_device=2"],
            &["data=4", "zero_stage=3", "shard=2"],
            &["tensor=2", "context=2", "pipeline=2"],
        ] {
            let sets: Vec<_> = sets.iter().map(|set| format!("parallel.{set}")).collect();
            let config = RunConfig::parse(TEXT, "test", std::path::Path::new("/"), &sets).unwrap();
            let short = short_configs(&config, &device).unwrap_or_else(|error| panic!("{sets:?}: {error}"));
            assert!(short[0].layers() == 8 && short.iter().all(|short| short.world_size() == 1), "{sets:?}");
            let few = short[0].with(&["model.layers=2".to_owned()]);
            assert_eq!(few.unwrap_or_else(|error| panic!("{sets:?}: {error}")).layers(), 2);
        }
    }
}
