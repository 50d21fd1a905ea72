//! Measured calls of a GPU: steps of a few models, of which each call is timed.
//!
//! The calls of a step are known from its log on Meta, with their sizes; the profile of the step on the GPU
//! has the same calls in the same order, with their times. So nothing but a step is run, and what is measured
//! is what steps consist of. Times of the calls of a step are scaled to add up to the step without events
//! between its calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use collective::Communicator;
use config::RunConfig;
use device::cuda::TimedCall;
use device::{CopyKind, Device, LoggedCall};
use plan::{CallSize, MeasuredCalls, step_calls};
use worker::placement::{Gpus, Placement};
use worker::{Setup, Worker, is_out_of_memory};

use crate::error::{BenchError, Result};
use crate::options::median;

/// Least work before a step is measured, so that the clocks are those of work at the power limit.
const WARM_UP: Duration = Duration::from_secs(2);
/// Steps that are timed as a whole, and steps whose calls are.
const STEPS: u64 = 5;
/// Fewest steps before them.
const FIRST_STEPS: u64 = 2;
/// Least part of a call's time between two events that is its own.
const LEAST_PART: f64 = 0.25;
/// A GPT whose step the device finishes sooner than the host enqueues it.
const SMALL: [&str; 3] = ["model.width=64", "model.heads=1", "model.context=64"];

/// Models of which steps are measured.
const GPT: &str = "[model]\nkind = \"gpt\"\nlayers = 2\nheads = 12\nwidth = 768\ncontext = 1024\n\
                   vocabulary = 32768\n";
const LLAMA: &str = "[model]\nkind = \"llama\"\nlayers = 2\nheads = 16\nkey_value_heads = 4\nwidth = 2048\n\
                     feed_forward = 5632\ncontext = 2048\nvocabulary = 32768\n";
const RESNET: &str = "[model]\nkind = \"resnet\"\ndepth = 50\nclasses = 1000\nimage_size = 224\n";

/// The measured steps: a model, keys, and samples in the step.
fn steps() -> Vec<(&'static str, Vec<&'static str>, usize)> {
    let mut steps = Vec::new();
    for types in [
        &["precision.compute=bf16"][..],
        &["precision.compute=f16"],
        &["precision.compute=f32"],
        &["precision.compute=f32", "precision.tf32=true"],
        &["precision.compute=bf16", "precision.matmul=fp8"],
    ] {
        let mut add = |model: &'static str, sizes: &[&'static str], samples: usize| {
            steps.push((model, [types, sizes].concat(), samples));
        };
        for samples in [1, 8, 32] {
            add(GPT, &[], samples);
        }
        add(GPT, &["model.width=1600", "model.heads=25"], 8);
        add(GPT, &["model.width=384", "model.heads=6", "model.context=256"], 32);
        add(GPT, &["model.width=1024", "model.heads=16", "memory.recompute=block"], 8);
        for samples in [1, 4] {
            add(LLAMA, &[], samples);
        }
        add(LLAMA, &["model.heads=32", "model.key_value_heads=8", "model.context=4096"], 2);
        add(LLAMA, &["model.width=4096", "model.heads=32", "model.feed_forward=14336"], 2);
        add(LLAMA, &["model.width=1536", "model.heads=6", "model.key_value_heads=2"], 4);
    }
    for types in ["precision.compute=bf16", "precision.compute=f32"] {
        for samples in [8, 32, 128] {
            steps.push((RESNET, vec![types], samples));
        }
    }
    steps.push((GPT, vec!["precision.compute=bf16", "model.dropout=0.1"], 8));
    steps.push((LLAMA, vec!["precision.compute=bf16", "lora.rank=16"], 4));
    steps
}

/// The measurements of calls.
pub(crate) struct CallMeasurements {
    pub(crate) calls: Vec<MeasuredCalls>,
    /// Seconds of the host for a launch.
    pub(crate) launch_seconds: f64,
    /// Seconds of the shortest kernel.
    pub(crate) kernel_seconds: f64,
}

/// Measures the calls of steps on one GPU, which should be otherwise idle.
///
/// # Errors
/// The GPU's; a step whose calls are others than those of its log.
pub(crate) fn measure(gpus: &Gpus) -> Result<CallMeasurements> {
    let mut samples: BTreeMap<String, Vec<[f64; 4]>> = BTreeMap::new();
    for (model, sets, size) in steps() {
        let measured = match MeasuredStep::of(gpus, &text(model), &sets, size) {
            // A small GPU measures the steps that it has memory for.
            Err(error) if is_out_of_memory(&error) => continue,
            measured => measured?,
        };
        for (CallSize { kind, size: [a, b, c] }, seconds) in measured.calls {
            samples.entry(kind).or_default().push([a, b, c, seconds]);
        }
    }
    let host = MeasuredStep::of(gpus, &text(GPT), &[&["precision.compute=bf16"], &SMALL[..]].concat(), 1)?;
    let calls: Vec<_> = samples
        .into_iter()
        .map(|(call, samples)| MeasuredCalls { call, samples: distinct(samples) })
        .collect();
    let shortest = calls.iter().flat_map(|calls| &calls.samples).map(|[.., seconds]| *seconds);
    let kernel_seconds = shortest.fold(f64::INFINITY, f64::min);
    Ok(CallMeasurements { calls, launch_seconds: host.step / host.launches.max(1.0), kernel_seconds })
}

fn text(model: &str) -> String {
    // The learning rate changes in every step, so that every step copies it to the device.
    format!(
        "{model}[data]\nkind = \"synthetic\"\n[train]\nsteps = 1000000\n[optim]\nwarmup_steps = 999999\n\
         [parallel]\nlanes = 1\n"
    )
}

/// Returns samples of one kind by size, each with the median of its times.
fn distinct(samples: Vec<[f64; 4]>) -> Vec<[f64; 4]> {
    let mut by_size: BTreeMap<[u64; 3], Vec<f64>> = BTreeMap::new();
    for [a, b, c, seconds] in samples {
        // Sizes are not negative, so their bits are in their order.
        by_size.entry([a, b, c].map(f64::to_bits)).or_default().push(seconds);
    }
    let sample = |(size, seconds): ([u64; 3], Vec<f64>)| {
        let [a, b, c] = size.map(f64::from_bits);
        [a, b, c, median(&seconds)]
    };
    by_size.into_iter().map(sample).collect()
}

/// A measured step.
struct MeasuredStep {
    /// The calls with their seconds.
    calls: Vec<(CallSize, f64)>,
    /// Seconds of the step.
    step: f64,
    /// Launches of the host, as the clock counts them.
    launches: f64,
}

impl MeasuredStep {
    fn of(gpus: &Gpus, text: &str, sets: &[&str], samples: usize) -> Result<Self> {
        let sizes = ["micro", "global"].map(|batch| format!("train.{batch}_batch_size={samples}"));
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).chain(sizes).collect();
        let config = RunConfig::parse(text, "the measurement", Path::new("/"), &sets)?;
        let setup = plan::prepare(config, Placement::Cuda(gpus.clone()))?;
        run::prepare_kernels(&setup)?;
        let logged = step_calls(&setup, 0)?;
        let launches = plan::host_launches(&logged);
        let mut calls = Vec::new();
        logged.for_each(|call| calls.extend(is_timed(call).then(|| call.clone())));
        let (profiles, step) = timed(&setup)?;
        for profile in &profiles {
            if let Some(difference) = difference(&calls, profile) {
                return Err(BenchError::Refused(format!(
                    "--describe: a step of {sets:?} differs from its plan: {difference}"
                )));
            }
        }
        let seconds = (0..calls.len()).map(|index| {
            let times: Vec<f64> =
                profiles.iter().map(|profile| f64::from(profile[index].milliseconds) / 1e3).collect();
            median(&times)
        });
        let seconds = scaled(seconds.collect(), step);
        let tf32 = setup.config.precision.tf32;
        let sized = calls
            .iter()
            .zip(seconds)
            .filter_map(|(call, seconds)| CallSize::of(call, 1, tf32).map(|size| (size, seconds)));
        Ok(MeasuredStep { calls: sized.collect(), step, launches })
    }
}

/// Returns whether a profile has a call.
fn is_timed(call: &LoggedCall) -> bool {
    match call {
        LoggedCall::Kernel(_) | LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. } => true,
        LoggedCall::Copy { kind, bytes, .. } => {
            !matches!(kind, CopyKind::ToHost | CopyKind::ToHostLater) && *bytes > 0
        }
        _ => false,
    }
}

/// Returns the first difference of a profile from the calls of a plan.
fn difference(calls: &[LoggedCall], profile: &[TimedCall]) -> Option<String> {
    let differs = |(call, timed): (&LoggedCall, &TimedCall)| CallSize::family(call) != Some(timed.family);
    let index = calls.iter().zip(profile).position(differs);
    if index.is_none() && calls.len() == profile.len() {
        return None;
    }
    let index = index.unwrap_or(calls.len().min(profile.len()));
    let (planned, made) = (calls.get(index).and_then(CallSize::family), profile.get(index));
    Some(format!(
        "call {index} is {} instead of {}, of {} instead of {} calls",
        made.map_or("none", |call| &call.name),
        planned.unwrap_or("none"),
        profile.len(),
        calls.len(),
    ))
}

/// Returns the profiles of some steps, and the seconds of a step without one.
fn timed(setup: &Setup) -> Result<(Vec<Vec<TimedCall>>, f64)> {
    let mut worker = Worker::new(setup, Communicator::solo())?;
    let device: Device = worker.device().clone();
    let (began, mut step) = (Instant::now(), 0);
    while step < FIRST_STEPS || began.elapsed() < WARM_UP {
        worker.step(step)?;
        worker.scalars(step)?;
        step += 1;
    }
    device.synchronize()?;
    let began = Instant::now();
    for _ in 0..STEPS {
        worker.step(step)?;
        step += 1;
    }
    device.synchronize()?;
    let seconds = began.elapsed().as_secs_f64() / STEPS as f64;
    let mut profiles = Vec::new();
    for _ in 0..STEPS {
        device.begin_profile();
        worker.step(step)?;
        profiles.push(device.end_profile()?);
        step += 1;
    }
    Ok((profiles, seconds))
}

/// Returns times of calls between two events each such that they add up to their step: less the time of
/// events where they take longer than the step, or else in proportion.
fn scaled(mut seconds: Vec<f64>, step: f64) -> Vec<f64> {
    let sum: f64 = seconds.iter().sum();
    let more = (sum - step).max(0.0) / seconds.len().max(1) as f64;
    seconds.iter_mut().for_each(|time| *time = (*time - more).max(LEAST_PART * *time));
    let rest = step / seconds.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    seconds.iter_mut().for_each(|time| *time *= rest);
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_calls_add_up_to_their_step() {
        for step in [0.5, 8.0, 24.0] {
            let seconds = scaled(vec![2.0, 6.0, 3.0], step);
            assert!((seconds.iter().sum::<f64>() - step).abs() < 1e-9, "{seconds:?}");
        }
        assert_eq!(scaled(vec![2.0, 6.0, 3.0], 8.0), [1.0, 5.0, 2.0]);
        assert_eq!(scaled(vec![1.0, 2.0], 6.0), [2.0, 4.0]);
    }

    #[test]
    fn samples_of_one_size_are_one() {
        let samples = vec![[1.0, 2.0, 3.0, 0.5], [1.0, 2.0, 3.0, 0.7], [0.0, 2.0, 3.0, 1.0]];
        assert_eq!(distinct(samples), [[0.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 0.7]]);
    }

    #[test]
    fn every_measured_step_is_a_configuration() {
        let all = steps();
        assert!(all.len() > 60, "{}", all.len());
        for (model, sets, _) in all {
            let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
            RunConfig::parse(&text(model), "the measurement", Path::new("/"), &sets).unwrap();
        }
    }
}
