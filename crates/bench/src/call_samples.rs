//! Measures single calls on a GPU by timing each call within steps of a few models.
//!
//! A step's calls and their sizes are known from its log on Meta. Profiling the step on the GPU yields the
//! same calls in the same order, with their times. Thus only real steps are run. Call times are corrected for
//! the events between them, and scaled so that they add up to the step without events. That step is replayed
//! as CUDA graphs, so the device does not wait for the host.

mod steps;

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use collective::Communicator;
use device::cuda::TimedCall;
use device::{CopyKind, DType, Device, LoggedCall, StreamKind};
use plan::{CallSize, CallSizes, Load, MeasuredCalls, step_calls};
use steps::{MeasuredModel, quick_steps, steps};
use system::threads;
use telemetry::EnergyCounter;
use worker::setup::placement::{Gpus, Placement};
use worker::{Setup, Worker, is_out_of_memory};

use crate::error::{BenchError, Result};
use crate::options::median;

/// Minimum work before a step is measured, so that the GPU reaches its clocks at the power limit.
const WARM_UP: Duration = Duration::from_secs(1);
/// Minimum total duration of the steps that are timed as a whole.
const TIMED: Duration = Duration::from_millis(300);
/// Minimum number of steps timed as a whole, and number of steps whose calls are timed.
const STEPS: u64 = 5;
/// Minimum number of untimed steps before; the third is captured.
const FIRST_STEPS: u64 = 4;
/// Number of replayed steps from which CUDA graph times are measured.
const REPLAYED_STEPS: u64 = 30;
/// Lower bound on the seconds that a CUDA graph saves per call.
const LEAST_GAIN: f64 = 1e-9;
/// Lower bound on host seconds per CUDA graph.
const LEAST_GRAPH: f64 = 1e-6;
/// Minimum fraction of the time between two events that is attributed to the call itself.
const LEAST_PART: f64 = 0.25;
/// If a step takes longer than this multiple of its calls, the device is waiting for the host. Below it, the
/// difference comes from a lower clock at the power limit in steps without gates.
const MOST_FACTOR: f64 = 1.1;

pub(crate) struct CallMeasurements {
    pub(crate) calls: Vec<MeasuredCalls>,
    /// Host seconds per kernel launch.
    pub(crate) launch_seconds: f64,
    /// Seconds of the shortest kernel.
    pub(crate) kernel_seconds: f64,
    /// Host seconds per CUDA graph.
    pub(crate) graph_seconds: f64,
    /// Seconds that a CUDA graph saves before the start of a call.
    pub(crate) graph_gain_seconds: f64,
    /// Median watts during steps in which the device does not wait for the host; `None` if the GPU does not
    /// count energy.
    pub(crate) step_watts: Option<f64>,
}

/// The steps that are measured for a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All steps, from which a device is described.
    Full,
    /// A few steps that take about a minute, to scale the description of another GPU of the same model.
    Quick,
}

impl Extent {
    fn steps(self) -> Vec<MeasuredModel> {
        match self {
            Extent::Full => steps(),
            Extent::Quick => quick_steps(),
        }
    }
}

/// Measures the calls of steps on identical GPUs, which should be otherwise idle and share the work. Calls
/// `progress` with the numbers of measured and of all steps. Times hold for steps with `load`, if any.
///
/// # Errors
/// A GPU fails, or a step's calls differ from its log.
pub(crate) fn measure(
    gpus: &[Gpus],
    extent: Extent,
    load: Option<Load>,
    progress: &dyn Fn(usize, usize),
) -> Result<CallMeasurements> {
    let Some(first) = gpus.first() else { return Err(BenchError::Refused("--describe: no GPU".to_owned())) };
    let gain = graph_gain_seconds(first)?;
    let measured = measured_steps(gpus, &extent.steps(), gain, progress)?;
    let event = event_seconds(&measured);
    let mut samples: BTreeMap<String, Vec<[f64; 4]>> = BTreeMap::new();
    for step in &measured {
        let flops = step.tensor_core_flops();
        for (size, seconds) in step.calls(event) {
            let seconds = load.map_or(seconds, |load| size.at_load(seconds, &load, flops));
            let CallSize { kind, size: [a, b, c] } = size;
            samples.entry(kind).or_default().push([a, b, c, seconds]);
        }
    }
    let calls = samples.into_iter().map(|(call, samples)| MeasuredCalls { call, samples: distinct(samples) });
    let mut calls: Vec<_> = calls.collect();
    let shortest = calls.iter().flat_map(|calls| &calls.samples).map(|[.., seconds]| *seconds);
    let kernel_seconds = shortest.fold(f64::INFINITY, f64::min);
    let host = MeasuredStep::measure(first, &MeasuredModel::small(), gain)?;
    let launch_seconds = host.step / host.launches.max(1.0);
    for dtype in [DType::Bf16, DType::F16, DType::F32] {
        let step = MeasuredStep::measure(first, &MeasuredModel::small_convolutions(dtype), gain)?;
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

/// Measures each of `steps` on one of the GPUs. `gain` is the seconds that a CUDA graph saves per call.
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
                    // The receiver is gone after an error.
                    if sender.send((index, MeasuredStep::measure(gpu, step, gain))).is_err() {
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
                // A small GPU measures only steps that fit.
                Err(error) if is_out_of_memory(&error) => {}
                step => measured.push((index, step?)),
            }
        }
        Ok::<_, BenchError>(())
    })?;
    measured.sort_by_key(|(index, _)| *index);
    Ok(measured.into_iter().map(|(_, step)| step).collect())
}

/// Groups samples of one kind by size, and takes the median time of each size.
fn distinct(samples: Vec<[f64; 4]>) -> Vec<[f64; 4]> {
    let mut by_size: BTreeMap<[u64; 3], Vec<f64>> = BTreeMap::new();
    for [a, b, c, seconds] in samples {
        // Sizes are nonnegative, so their bits sort like the numbers.
        by_size.entry([a, b, c].map(f64::to_bits)).or_default().push(seconds);
    }
    let sample = |(size, seconds): ([u64; 3], Vec<f64>)| {
        let [a, b, c] = size.map(f64::from_bits);
        [a, b, c, median(&seconds)]
    };
    by_size.into_iter().map(sample).collect()
}

struct MeasuredStep {
    /// Calls on the compute stream, with the seconds between the events around each.
    computed: Vec<(CallSize, f64)>,
    /// Calls on other streams, which overlap.
    others: Vec<(CallSize, f64)>,
    /// Duration of the step in seconds, without events around its calls and without overlap of calls.
    step: f64,
    /// Mean watts, if the GPU counts its energy.
    watts: Option<f64>,
    /// Host time of the calls in units of one kernel launch, as the clock counts it.
    launches: f64,
    convolutions: usize,
}

impl MeasuredStep {
    /// Measures a step. Without CUDA graphs, each call takes `gain` seconds longer than in a replayed step.
    fn measure(gpus: &Gpus, model: &MeasuredModel, gain: f64) -> Result<Self> {
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
        let sizes =
            CallSizes::new(1, setup.placement.description().multiprocessors, setup.config.precision.tf32);
        let mut computed = Vec::new();
        let mut others = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let Some(size) = sizes.size(call) else { continue };
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

    /// Returns the step's FLOP/s on tensor cores.
    fn tensor_core_flops(&self) -> f64 {
        self.computed.iter().map(|(size, _)| size.tensor_core_flops()).sum::<f64>() / self.step
    }

    /// Returns the total seconds between events, over all calls on the compute stream.
    fn between_events(&self) -> f64 {
        self.computed.iter().map(|(_, seconds)| seconds).sum()
    }

    /// Returns the ratio of the step's seconds to the sum of its compute calls' seconds, if an event takes
    /// `event` seconds.
    fn factor(&self, event: f64) -> f64 {
        let sum: f64 = self.computed.iter().map(|(_, seconds)| without(event, *seconds)).sum();
        self.step / sum.max(f64::MIN_POSITIVE)
    }

    /// Returns whether the device waited for the host, so that the step took longer than its calls.
    fn waits_for_host(&self, event: f64) -> bool {
        self.factor(event) >= MOST_FACTOR
    }

    /// Returns the calls with their corrected seconds, if an event takes `event` seconds.
    fn calls(&self, event: f64) -> Vec<(CallSize, f64)> {
        let factor = factor_of_step(self.factor(event));
        let less = |(size, seconds): &(CallSize, f64)| (size.clone(), without(event, *seconds));
        let computed = self.computed.iter().map(less).map(|(size, seconds)| (size, seconds * factor));
        computed.chain(self.others.iter().map(less)).collect()
    }
}

/// Returns the factor of the seconds of a step's calls, if the step takes `ratio` times their sum: 1 if the
/// device waits for the host.
pub(crate) fn factor_of_step(ratio: f64) -> f64 {
    if ratio < MOST_FACTOR { ratio } else { 1.0 }
}

/// Returns a call's seconds between two events, minus the `event` seconds that the events take.
pub(crate) fn without(event: f64, seconds: f64) -> f64 {
    (seconds - event).max(LEAST_PART * seconds)
}

/// Returns the seconds that the events around a call add to it: the median over steps of (time with events −
/// time without) / number of calls.
fn event_seconds(steps: &[MeasuredStep]) -> f64 {
    let excess =
        |step: &MeasuredStep| (step.between_events() - step.step) / step.computed.len().max(1) as f64;
    let seconds: Vec<f64> = steps.iter().map(excess).filter(|seconds| *seconds > 0.0).collect();
    if seconds.is_empty() { 0.0 } else { median(&seconds) }
}

/// Returns whether a profile times this call.
pub(crate) fn is_timed(call: &LoggedCall) -> bool {
    match call {
        LoggedCall::Kernel(_) | LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. } => true,
        LoggedCall::Copy { kind, bytes, .. } => {
            !matches!(kind, CopyKind::ToHost | CopyKind::ToHostLater) && *bytes > 0
        }
        _ => false,
    }
}

/// Returns the first difference between a profile and the planned calls; `None` if they agree.
pub(crate) fn difference(calls: &[LoggedCall], profile: &[TimedCall]) -> Option<String> {
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

/// Returns the host seconds per CUDA graph of a replayed step, if a launch takes `launch_seconds`.
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

/// Returns the seconds that a CUDA graph saves before the start of a call. This is the median over models
/// with many short calls, timed with and without graphs.
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
    /// Seconds of a step without profiling.
    seconds: f64,
    /// Mean watts during these steps.
    watts: Option<f64>,
    /// Whether the steps were replayed as CUDA graphs.
    replayed: bool,
}

/// Times some steps as a whole, then the calls of further steps.
fn timed(setup: &Setup) -> Result<TimedSteps> {
    let mut worker = Worker::new(setup, Communicator::solo())?;
    let (step, seconds, watts) = timed_steps(&mut worker)?;
    let replayed = worker.replayed_steps() > 0;
    let profiles = (0..STEPS).map(|more| profile(&mut worker, step + more)).collect::<Result<_>>()?;
    Ok(TimedSteps { profiles, seconds, watts, replayed })
}

/// Returns the calls of step `step`, each timed alone.
pub(crate) fn profile(worker: &mut Worker, step: u64) -> Result<Vec<TimedCall>> {
    let device: Device = worker.device().clone();
    device.begin_profile_ahead()?;
    worker.step(step)?;
    Ok(device.end_profile()?)
}

/// Warms up, then times steps as a whole. Returns the number of the next step, the seconds of one step, and
/// the mean watts if the GPU counts energy.
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
        // Read one step late, as in a run.
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
        let step_of = |step| MeasuredStep {
            computed: computed.clone(),
            others: others.clone(),
            step,
            watts: None,
            launches: 2.0,
            convolutions: 0,
        };
        assert!((event_seconds(&[step_of(12.0), step_of(20.0)]) - 1.0).abs() < 1e-12);
        let seconds =
            |step| step_of(step).calls(1.0).into_iter().map(|(_, seconds)| seconds).collect::<Vec<_>>();
        assert_eq!(seconds(12.0), [4.0, 8.0, 2.0]);
        assert_eq!(seconds(9.0), [3.0, 6.0, 2.0]);
        // The device waits for the host.
        assert_eq!(seconds(30.0), [4.0, 8.0, 2.0]);
    }

    #[test]
    fn samples_of_one_size_are_one() {
        let samples = vec![[1.0, 2.0, 3.0, 0.5], [1.0, 2.0, 3.0, 0.7], [0.0, 2.0, 3.0, 1.0]];
        assert_eq!(distinct(samples), [[0.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 0.7]]);
    }
}
