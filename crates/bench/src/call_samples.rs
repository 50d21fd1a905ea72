//! Measured calls of a GPU: steps of a few models, of which each call is timed.
//!
//! The calls of a step are known from its log on Meta, with their sizes; the profile of the step on the GPU
//! has the same calls in the same order, with their times. So nothing but a step is run, and what is measured
//! is what steps consist of. Times of calls are less what events between them take, and add up to the step
//! without events, which is replayed as CUDA graphs so that the device does not wait for the host.

mod steps;

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use collective::Communicator;
use device::cuda::TimedCall;
use device::{CopyKind, DType, Device, LoggedCall, StreamKind};
use plan::{CallSize, MeasuredCalls, step_calls};
use steps::{MeasuredModel, steps};
use system::threads;
use telemetry::EnergyCounter;
use worker::setup::placement::{Gpus, Placement};
use worker::{Setup, Worker, is_out_of_memory};

use crate::error::{BenchError, Result};
use crate::options::median;

/// Least work before a step is measured, so that the clocks are those of work at the power limit.
const WARM_UP: Duration = Duration::from_secs(1);
/// Least time of the steps that are timed as a whole.
const TIMED: Duration = Duration::from_millis(300);
/// Fewest steps that are timed as a whole, and steps whose calls are timed.
const STEPS: u64 = 5;
/// Fewest steps before them, of which the third is captured.
const FIRST_STEPS: u64 = 4;
/// Steps of which those that are replayed as CUDA graphs are timed.
const REPLAYED_STEPS: u64 = 30;
/// Fewest seconds that a CUDA graph gains at a call.
const LEAST_GAIN: f64 = 1e-9;
/// Fewest seconds of the host for a CUDA graph.
const LEAST_GRAPH: f64 = 1e-6;
/// Least part of a call's time between two events that is its own.
const LEAST_PART: f64 = 0.25;
/// Most by which a step takes longer than its calls, as a factor, if the device does not wait for the host:
/// at its power limit a device has a lower clock in steps without gates.
const MOST_FACTOR: f64 = 1.1;

pub(crate) struct CallMeasurements {
    pub(crate) calls: Vec<MeasuredCalls>,
    /// Seconds of the host for a launch.
    pub(crate) launch_seconds: f64,
    /// Seconds of the shortest kernel.
    pub(crate) kernel_seconds: f64,
    /// Seconds of the host for a CUDA graph.
    pub(crate) graph_seconds: f64,
    /// Seconds by which a call of a CUDA graph follows the one before it sooner than without a graph.
    pub(crate) graph_gain_seconds: f64,
    /// Median power in watts of steps in which the device does not wait for the host; `None` for GPUs that do
    /// not count their energy.
    pub(crate) step_watts: Option<f64>,
}

/// Measures the calls of steps on GPUs of one kind, which should be otherwise idle and share the work. Calls
/// `progress` with the numbers of measured steps and of all.
///
/// # Errors
/// The GPUs'; a step whose calls are others than those of its log.
pub(crate) fn measure(gpus: &[Gpus], progress: &dyn Fn(usize, usize)) -> Result<CallMeasurements> {
    let Some(first) = gpus.first() else { return Err(BenchError::Refused("--describe: no GPU".to_owned())) };
    let gain = graph_gain_seconds(first)?;
    let measured = measured_steps(gpus, &steps(), gain, progress)?;
    let event = event_seconds(&measured);
    let mut samples: BTreeMap<String, Vec<[f64; 4]>> = BTreeMap::new();
    for step in &measured {
        for (CallSize { kind, size: [a, b, c] }, seconds) in step.calls(event) {
            samples.entry(kind).or_default().push([a, b, c, seconds]);
        }
    }
    let calls = samples.into_iter().map(|(call, samples)| MeasuredCalls { call, samples: distinct(samples) });
    let mut calls: Vec<_> = calls.collect();
    let shortest = calls.iter().flat_map(|calls| &calls.samples).map(|[.., seconds]| *seconds);
    let kernel_seconds = shortest.fold(f64::INFINITY, f64::min);
    let host = MeasuredStep::of(first, &MeasuredModel::small(), gain)?;
    let launch_seconds = host.step / host.launches.max(1.0);
    for dtype in [DType::Bf16, DType::F16, DType::F32] {
        let step = MeasuredStep::of(first, &MeasuredModel::small_convolutions(dtype), gain)?;
        let convolutions = step.convolutions as f64;
        let others = step.launches - convolutions;
        let seconds = ((step.step - launch_seconds * others) / convolutions.max(1.0)).max(launch_seconds);
        calls.push(MeasuredCalls {
            call: plan::host_convolution(dtype),
            samples: vec![[1.0, 1.0, 1.0, seconds]],
        });
    }
    let busy = measured.iter().filter(|step| !step.waits_for_host(event));
    let watts: Vec<_> = busy.filter_map(|step| step.watts).collect();
    let step_watts = (!watts.is_empty()).then(|| median(&watts));
    let graph_seconds = graph_seconds(first, launch_seconds)?;
    Ok(CallMeasurements {
        calls,
        launch_seconds,
        kernel_seconds,
        graph_seconds,
        graph_gain_seconds: gain,
        step_watts,
    })
}

/// Measures each of `steps` on one of the GPUs, where a call of a CUDA graph follows the one before it `gain`
/// seconds sooner.
fn measured_steps(
    gpus: &[Gpus],
    steps: &[MeasuredModel],
    gain: f64,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<MeasuredStep>> {
    let (sender, receiver) = channel();
    let mut measured: Vec<(usize, MeasuredStep)> = Vec::new();
    std::thread::scope(|scope| {
        for (first, gpu) in gpus.iter().enumerate() {
            let sender = sender.clone();
            let measure = move || {
                for (index, step) in steps.iter().enumerate().skip(first).step_by(gpus.len()) {
                    // Nobody waits for results after an error.
                    if sender.send((index, MeasuredStep::of(gpu, step, gain))).is_err() {
                        break;
                    }
                }
            };
            threads::spawn_scoped(scope, measure)
                .map_err(|error| BenchError::Refused(format!("no thread can be started: {error}")))?;
        }
        drop(sender);
        for (done, (index, step)) in receiver.into_iter().enumerate() {
            progress(done, steps.len());
            match step {
                // A small GPU measures the steps that it has memory for.
                Err(error) if is_out_of_memory(&error) => {}
                step => measured.push((index, step?)),
            }
        }
        Ok::<_, BenchError>(())
    })?;
    measured.sort_by_key(|(index, _)| *index);
    Ok(measured.into_iter().map(|(_, step)| step).collect())
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

struct MeasuredStep {
    /// The calls on the compute stream, with seconds between the events before and after each.
    computed: Vec<(CallSize, f64)>,
    /// The calls on other streams, which run meanwhile.
    others: Vec<(CallSize, f64)>,
    /// Seconds of the step without events, its calls one after the other.
    step: f64,
    /// Mean power in watts, if the GPU counts its energy.
    watts: Option<f64>,
    /// Launches of the host, as the clock counts them.
    launches: f64,
    convolutions: usize,
}

impl MeasuredStep {
    /// Measures a step. A replayed one takes longer by `gain` for each call when it is made call by call.
    fn of(gpus: &Gpus, model: &MeasuredModel, gain: f64) -> Result<Self> {
        let setup = plan::prepare(model.config()?, Placement::Cuda(gpus.clone()))?;
        run::prepare_kernels(&setup)?;
        let logged = step_calls(&setup, 0)?;
        let launches = plan::host_launches(&logged);
        let mut calls = Vec::new();
        logged.for_each(|call| calls.extend(is_timed(call).then(|| call.clone())));
        let TimedSteps { profiles, seconds, watts, replayed } = timed(&setup)?;
        for profile in &profiles {
            if let Some(difference) = difference(&calls, profile) {
                let text = format!("--describe: a step of {model:?} differs from its plan: {difference}");
                return Err(BenchError::Refused(text));
            }
        }
        let tf32 = setup.config.precision.tf32;
        let mut computed = Vec::new();
        let mut others = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let Some(size) = CallSize::of(call, 1, tf32) else { continue };
            let times: Vec<_> =
                profiles.iter().map(|profile| f64::from(profile[index].milliseconds) / 1e3).collect();
            match profiles[0][index].stream {
                StreamKind::Compute => computed.push((size, median(&times))),
                _ => others.push((size, median(&times))),
            }
        }
        let convolutions = calls.iter().filter(|call| matches!(call, LoggedCall::Convolution { .. })).count();
        let step = seconds + if replayed { gain * computed.len() as f64 } else { 0.0 };
        Ok(MeasuredStep { computed, others, step, watts, launches, convolutions })
    }

    /// Seconds between the events of all calls on the compute stream.
    fn between_events(&self) -> f64 {
        self.computed.iter().map(|(_, seconds)| seconds).sum()
    }

    /// Returns the step's seconds as a multiple of those of its calls on the compute stream, where an event
    /// takes `event` seconds.
    fn factor(&self, event: f64) -> f64 {
        let sum: f64 = self.computed.iter().map(|(_, seconds)| without(event, *seconds)).sum();
        self.step / sum.max(f64::MIN_POSITIVE)
    }

    /// Returns whether the device waits for the host: the step takes longer than its calls.
    fn waits_for_host(&self, event: f64) -> bool {
        self.factor(event) >= MOST_FACTOR
    }

    /// Returns the calls with their seconds, where an event takes `event` seconds.
    fn calls(&self, event: f64) -> Vec<(CallSize, f64)> {
        let factor = if self.waits_for_host(event) { 1.0 } else { self.factor(event) };
        let less = |(size, seconds): &(CallSize, f64)| (size.clone(), without(event, *seconds));
        let computed = self.computed.iter().map(less).map(|(size, seconds)| (size, seconds * factor));
        computed.chain(self.others.iter().map(less)).collect()
    }
}

/// Returns a call's seconds between two events, less the `event` seconds that they take.
fn without(event: f64, seconds: f64) -> f64 {
    (seconds - event).max(LEAST_PART * seconds)
}

/// Returns the seconds that an event before and after a call takes: the median, over steps, of those by which
/// the calls between events take longer than the step without, for each call.
fn event_seconds(steps: &[MeasuredStep]) -> f64 {
    let of = |step: &MeasuredStep| (step.between_events() - step.step) / step.computed.len().max(1) as f64;
    let seconds: Vec<f64> = steps.iter().map(of).filter(|seconds| *seconds > 0.0).collect();
    if seconds.is_empty() { 0.0 } else { median(&seconds) }
}

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
    let planned = calls.get(index).and_then(CallSize::family);
    let made = profile.get(index);
    Some(format!(
        "call {index} is {} instead of {}, of {} instead of {} calls",
        made.map_or("none", |call| &call.name),
        planned.unwrap_or("none"),
        profile.len(),
        calls.len(),
    ))
}

/// Returns the seconds of the host for a CUDA graph of a replayed step, where a launch takes
/// `launch_seconds`.
fn graph_seconds(gpus: &Gpus, launch_seconds: f64) -> Result<f64> {
    let config = MeasuredModel::small().in_graphs().config()?;
    let setup = plan::prepare(config, Placement::Cuda(gpus.clone()))?;
    let (launches, graphs) = plan::replayed_launches(&step_calls(&setup, 0)?);
    let mut worker = Worker::new(&setup, Communicator::solo())?;
    let device: Device = worker.device().clone();
    let mut times = Vec::new();
    for step in 0..REPLAYED_STEPS {
        device.synchronize()?;
        let began = Instant::now();
        let before = worker.replayed_steps();
        worker.step(step)?;
        let seconds = began.elapsed().as_secs_f64();
        times.extend((worker.replayed_steps() > before).then_some(seconds));
    }
    if times.is_empty() {
        return Err(BenchError::Refused("--describe: no step was replayed as CUDA graphs".to_owned()));
    }
    Ok(((median(&times) - launch_seconds * launches) / graphs.max(1.0)).max(LEAST_GRAPH))
}

/// Returns the seconds by which a call of a CUDA graph follows the one before it sooner than without a graph:
/// the median over models with many short calls, each of which is timed with and without graphs.
fn graph_gain_seconds(gpus: &Gpus) -> Result<f64> {
    let seconds = |model: MeasuredModel| -> Result<(f64, usize)> {
        let setup = plan::prepare(model.config()?, Placement::Cuda(gpus.clone()))?;
        run::prepare_kernels(&setup)?;
        let mut calls = 0;
        step_calls(&setup, 0)?.for_each(|call| calls += usize::from(is_timed(call)));
        let (_, seconds, _) = timed_steps(&mut Worker::new(&setup, Communicator::solo())?)?;
        Ok((seconds, calls))
    };
    let gain = |model: MeasuredModel| -> Result<f64> {
        let ((plain, calls), (replayed, _)) = (seconds(model.clone())?, seconds(model.in_graphs())?);
        Ok((plain - replayed) / calls.max(1) as f64)
    };
    let gains = MeasuredModel::many_calls().into_iter().map(gain).collect::<Result<Vec<_>>>()?;
    Ok(median(&gains).max(LEAST_GAIN))
}

struct TimedSteps {
    profiles: Vec<Vec<TimedCall>>,
    /// Seconds of a step without a profile.
    seconds: f64,
    /// Mean power in watts meanwhile.
    watts: Option<f64>,
    /// Whether they were replayed as CUDA graphs.
    replayed: bool,
}

/// Times steps as a whole, and then calls of others.
fn timed(setup: &Setup) -> Result<TimedSteps> {
    let mut worker = Worker::new(setup, Communicator::solo())?;
    let device: Device = worker.device().clone();
    let (mut step, seconds, watts) = timed_steps(&mut worker)?;
    let replayed = worker.replayed_steps() > 0;
    let mut profiles = Vec::new();
    for _ in 0..STEPS {
        device.begin_profile_ahead()?;
        worker.step(step)?;
        profiles.push(device.end_profile()?);
        step += 1;
    }
    Ok(TimedSteps { profiles, seconds, watts, replayed })
}

/// Runs steps until the clocks are those of work, and times others as a whole. Returns the number of the next
/// step, the seconds of one, and the mean power in watts meanwhile, of a GPU that counts its energy.
fn timed_steps(worker: &mut Worker) -> Result<(u64, f64, Option<f64>)> {
    let device: Device = worker.device().clone();
    let counter = device.uuid().and_then(|uuid| EnergyCounter::open(&uuid));
    let joules = || counter.as_ref().and_then(EnergyCounter::joules);
    let began = Instant::now();
    let mut step = 0;
    while step < FIRST_STEPS || began.elapsed() < WARM_UP {
        worker.step(step)?;
        worker.scalars(step)?;
        step += 1;
    }
    device.synchronize()?;
    let before = joules();
    let began = Instant::now();
    let first = step;
    while step < first + STEPS || began.elapsed() < TIMED {
        worker.step(step)?;
        // As a run does, one step late.
        worker.scalars(step - 1)?;
        step += 1;
    }
    device.synchronize()?;
    let all = began.elapsed().as_secs_f64();
    let watts = before.zip(joules()).map(|(before, after)| (after - before) / all);
    Ok((step, all / (step - first) as f64, watts.filter(|watts| *watts > 0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(bytes: f64) -> CallSize {
        CallSize { kind: "copy".to_owned(), size: [1.0, bytes, 1.0] }
    }

    #[test]
    fn times_of_calls_are_without_events_and_add_up_to_their_step() {
        let computed = [5.0, 9.0].map(|seconds| (call(seconds), seconds)).to_vec();
        let others = vec![(call(3.0), 3.0)];
        let of = |step| MeasuredStep {
            computed: computed.clone(),
            others: others.clone(),
            step,
            watts: None,
            launches: 2.0,
            convolutions: 0,
        };
        assert!((event_seconds(&[of(12.0), of(20.0)]) - 1.0).abs() < 1e-12);
        let seconds = |step| of(step).calls(1.0).into_iter().map(|(_, seconds)| seconds).collect::<Vec<_>>();
        assert_eq!(seconds(12.0), [4.0, 8.0, 2.0]);
        assert_eq!(seconds(9.0), [3.0, 6.0, 2.0]);
        // The device waited for the host.
        assert_eq!(seconds(30.0), [4.0, 8.0, 2.0]);
    }

    #[test]
    fn samples_of_one_size_are_one() {
        let samples = vec![[1.0, 2.0, 3.0, 0.5], [1.0, 2.0, 3.0, 0.7], [0.0, 2.0, 3.0, 1.0]];
        assert_eq!(distinct(samples), [[0.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 0.7]]);
    }
}
