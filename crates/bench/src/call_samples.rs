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
const WARM_UP: Duration = Duration::from_secs(1);
/// Steps that are timed as a whole, and steps whose calls are.
const STEPS: u64 = 5;
/// Fewest steps before them.
const FIRST_STEPS: u64 = 2;
/// Least part of a call's time between two events that is its own.
const LEAST_PART: f64 = 0.25;
/// A GPT whose step the device finishes sooner than the host enqueues it.
const SMALL: [&str; 4] = ["precision.compute=bf16", "model.width=64", "model.heads=1", "model.context=64"];

/// Models of which steps are measured.
const GPT: &str = "[model]\nkind = \"gpt\"\nlayers = 2\nheads = 12\nwidth = 768\ncontext = 1024\n\
                   vocabulary = 32768\n";
const LLAMA: &str = "[model]\nkind = \"llama\"\nlayers = 2\nheads = 16\nkey_value_heads = 4\nwidth = 2048\n\
                     feed_forward = 5632\ncontext = 2048\nvocabulary = 32768\n";
/// Heads of 64 values, longer sequences and a large vocabulary.
const LONGER: &str = "[model]\nkind = \"llama\"\nlayers = 2\nheads = 32\nkey_value_heads = 8\nwidth = 2048\n\
                      feed_forward = 8192\ncontext = 4096\nvocabulary = 131072\n";
/// Norms of queries and keys, and heads wider than the model's share.
const NORMED: &str = "[model]\nkind = \"llama\"\nlayers = 2\nheads = 16\nkey_value_heads = 8\nhead_width = 128\n\
                      width = 1024\nfeed_forward = 3072\ncontext = 4096\nvocabulary = 65536\nqk_norm = true\n";
/// Windows, wide heads, norms on both sides of a layer and a very large vocabulary.
const WINDOWED: &str = "[model]\nkind = \"llama\"\nlayers = 2\nheads = 4\nkey_value_heads = 1\nhead_width = 256\n\
                        width = 1152\nfeed_forward = 6912\ncontext = 4096\nvocabulary = 196608\ntied = true\n\
                        activation = \"gelu\"\nqk_norm = true\nnorm_position = \"both\"\nnorms_less_one = true\n\
                        window = 512\nlayer_types = [\"sliding_attention\", \"full_attention\"]\n\
                        embedding_scale = 33.9\n";
const RESNET: &str = "[model]\nkind = \"resnet\"\ndepth = 50\nclasses = 1000\nimage_size = 224\n";

/// Widths, heads, contexts and numbers of samples of the measured GPTs.
const GPTS: [(usize, usize, usize, &[usize]); 9] = [
    (384, 6, 256, &[64, 192]),
    (512, 8, 512, &[4, 32]),
    (768, 12, 1024, &[1, 3, 8, 32, 64]),
    (768, 12, 4096, &[2]),
    (896, 14, 1024, &[8]),
    (1024, 16, 1024, &[1, 4, 16]),
    (1280, 20, 1024, &[2, 8]),
    (1600, 25, 1024, &[1, 3, 12]),
    (2048, 16, 2048, &[2]),
];

/// The measured steps: a model, keys, and samples in the step.
#[derive(Default)]
struct Steps(Vec<(&'static str, Vec<String>, usize)>);

impl Steps {
    fn add(&mut self, model: &'static str, samples: &[usize], keys: &[&str]) {
        let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
        self.0.extend(samples.iter().map(|samples| (model, keys.clone(), *samples)));
    }

    /// Adds the measured GPTs that pass a filter by width and number of samples.
    fn add_gpts(&mut self, keys: &[&str], filter: impl Fn(usize, usize) -> bool) {
        for (width, heads, context, samples) in GPTS {
            let samples: Vec<_> = samples.iter().copied().filter(|samples| filter(width, *samples)).collect();
            let sizes = [("width", width), ("heads", heads), ("context", context)];
            let sizes = sizes.map(|(key, value)| format!("model.{key}={value}"));
            let keys: Vec<_> = keys.iter().copied().chain(sizes.iter().map(String::as_str)).collect();
            self.add(GPT, &samples, &keys);
        }
    }

    /// All steps, those of one type after the other.
    fn all() -> Vec<(&'static str, Vec<String>, usize)> {
        let mut steps = Steps::default();
        steps.add_bf16();
        let f16 = "precision.compute=f16";
        steps.add_gpts(&[f16], |width, samples| {
            matches!((width, samples), (768, 3 | 32) | (1024 | 1600, 3 | 4))
        });
        steps.add(LLAMA, &[3], &[f16]);
        steps.add(RESNET, &[16, 128], &[f16]);
        let fp8 = &["precision.compute=bf16", "precision.matmul=fp8"];
        let few =
            |width, samples| matches!((width, samples), (768, 3 | 8 | 64) | (1024, 16) | (1600, 3 | 12));
        steps.add_gpts(fp8, few);
        steps.add(LLAMA, &[1, 4], fp8);
        steps.add(LONGER, &[1, 3], fp8);
        steps.add(NORMED, &[3], fp8);
        let tf32 = &["precision.compute=f32", "precision.tf32=true"];
        let few = |width, samples| matches!((width, samples), (768, 3 | 8) | (1024, 4) | (1600, 1));
        steps.add_gpts(tf32, few);
        steps.add(LONGER, &[1], tf32);
        steps.add(RESNET, &[32, 128], tf32);
        let f32 = "precision.compute=f32";
        let few = |width, samples| matches!((width, samples), (384, 64) | (768, 3 | 8) | (1024, 4));
        steps.add_gpts(&[f32], few);
        steps.add(LLAMA, &[1], &[f32]);
        steps.add(RESNET, &[32, 128], &[f32]);
        steps.0
    }

    /// Adds steps in bf16, in which most models are trained.
    fn add_bf16(&mut self) {
        let bf16 = "precision.compute=bf16";
        self.add_gpts(&[bf16], |_, _| true);
        self.add(GPT, &[8], &[bf16, "model.vocabulary=33333"]);
        self.add(GPT, &[8], &[bf16, "optim.kind=lion"]);
        self.add_gpts(&[bf16, "model.dropout=0.1"], |width, samples| {
            matches!((width, samples), (384, _) | (768, 3 | 32) | (1024, 4))
        });
        // Heads whose width is no multiple of 16.
        self.add(GPT, &[4], &[bf16, "model.width=672"]);
        self.add(GPT, &[16], &[bf16, "model.width=720", "model.heads=10"]);
        self.add(LLAMA, &[1, 4], &[bf16]);
        self.add(LLAMA, &[1, 3], &[bf16, "model.width=4096", "model.heads=32", "model.feed_forward=14336"]);
        self.add(LLAMA, &[4], &[bf16, "model.width=1536", "model.heads=6", "model.key_value_heads=2"]);
        self.add(LLAMA, &[4], &[bf16, "lora.rank=16"]);
        for model in [LONGER, NORMED] {
            self.add(model, &[1, 3], &[bf16]);
            self.add(model, &[2], &[bf16, "lora.rank=16"]);
        }
        self.add(WINDOWED, &[1, 3], &[bf16]);
        self.add(WINDOWED, &[2], &[bf16, "lora.rank=16"]);
        self.add(RESNET, &[8, 32, 128], &[bf16]);
        self.add(RESNET, &[32], &[bf16, "model.depth=34"]);
    }
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
    for (model, sets, size) in Steps::all() {
        let measured = match MeasuredStep::of(gpus, &text(model), &sets, size) {
            // A small GPU measures the steps that it has memory for.
            Err(error) if is_out_of_memory(&error) => continue,
            measured => measured?,
        };
        for (CallSize { kind, size: [a, b, c] }, seconds) in measured.calls {
            samples.entry(kind).or_default().push([a, b, c, seconds]);
        }
    }
    let host = MeasuredStep::of(gpus, &text(GPT), &SMALL.map(str::to_owned), 1)?;
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
    fn of(gpus: &Gpus, text: &str, sets: &[String], samples: usize) -> Result<Self> {
        let sizes = ["micro", "global"].map(|batch| format!("train.{batch}_batch_size={samples}"));
        let sets: Vec<String> = sets.iter().cloned().chain(sizes).collect();
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
        let all = Steps::all();
        assert!(all.len() > 60, "{}", all.len());
        for (model, sets, _) in all {
            RunConfig::parse(&text(model), "the measurement", Path::new("/"), &sets).unwrap();
        }
    }
}
