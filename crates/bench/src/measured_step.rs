//! Steps of a configuration, predicted and measured: their time, and what their parts take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use collective::Communicator;
use config::{Graphs, RunConfig};
use device::{Backend, LoggedCall, StreamKind};
use plan::{
    CallSize, CallSizes, DeviceRanks, MeasuredCalls, PlanDevice, StepTime, predicted_calls, prepare_shapes,
    recompute,
};
use planned::UNPLANNED_EVENTS;
use run::{ChosenPlacement, Startup};
use serde::{Deserialize, Serialize};
use telemetry::Phase;
use worker::{Placement, Setup, Worker};

use crate::call_samples::{difference, factor_of_step, is_timed, profile, without};
use crate::cycled::cycled;
use crate::error::{BenchError, Result};
use crate::options::{BenchOptions, median};
use crate::ranks::measure_ranks;
use crate::rates::legible;
use crate::steps::timed_steps;

/// Minimum number of steps before the ones whose calls are timed.
const FIRST_STEPS: u64 = 3;
/// Steps in which the learning rate rises, more than are run.
const RISING_STEPS: u64 = 1 << 20;
/// Steps whose calls are timed.
const PROFILES: u64 = 3;
/// Most calls of a step that are timed one by one: more, as of Muon with many experts, take minutes.
const MOST_CALLS: usize = 20_000;
/// The device is predicted to wait if a step's predicted time exceeds this multiple of its calls' time.
const WAITING: f64 = 1.03;
/// Seconds that the events around a call add to it, and their standard deviation between steps.
const EVENT: [f64; 2] = [1.9e-6, 0.2e-6];
/// Most seconds that the events around a call are assumed to add.
const MOST_EVENT: f64 = 3e-6;
/// Standard deviation, between steps with events and steps without, of the clock, as a part of it.
const CLOCK: f64 = 0.01;

/// Predicted and measured time of one family of calls in a step, or of one phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FamilyDifference {
    /// Name of the family.
    pub family: String,
    /// Predicted seconds.
    pub predicted_seconds: f64,
    /// Measured seconds.
    pub measured_seconds: f64,
}

/// Calls of one kind and size in a step, with predicted and measured times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallDifference {
    /// Kind of the calls ([`CallSize::kind`]).
    pub call: String,
    /// Size of each call ([`CallSize::size`]).
    pub size: [f64; 3],
    /// Number of calls in a step.
    pub calls: usize,
    /// Predicted seconds of all these calls.
    pub predicted_seconds: f64,
    /// Measured seconds of all these calls, scaled so that all calls of a step add up to the step.
    pub measured_seconds: f64,
}

impl CallDifference {
    /// Returns the kind and size of each call.
    fn size(&self) -> CallSize {
        CallSize { kind: self.call.clone(), size: self.size }
    }
}

/// Minimum share of a step's time for a sample: calls of one kind and size that take less are skipped.
const LEAST_SHARE: f64 = 2e-4;

/// Calls of one kind and size in a measured step, for a description.
pub(crate) struct StepSample {
    size: CallSize,
    /// Seconds of each call.
    seconds: f64,
    /// Share of all these calls in the step's time.
    share: f64,
}

/// Returns the calls of a step that took `seconds` as samples of a description of `device`.
pub(crate) fn samples_of_step(
    calls: &[CallDifference],
    seconds: f64,
    device: &PlanDevice,
) -> Vec<StepSample> {
    // The device waits for the host in copies from it.
    let counts = |call: &&CallDifference| call.call != "copy from host";
    let flops = |call: &CallDifference| call.calls as f64 * call.size().tensor_core_flops();
    let flops = calls.iter().map(flops).sum::<f64>() / seconds;
    let sample = |measured: &CallDifference| {
        let size = measured.size();
        let each = measured.measured_seconds / measured.calls.max(1) as f64;
        let each = device.load.map_or(each, |load| size.at_load(each, &load, flops));
        StepSample { size, seconds: each, share: measured.measured_seconds / seconds }
    };
    calls.iter().filter(counts).map(sample).filter(|sample| sample.share >= LEAST_SHARE).collect()
}

/// Returns samples by their kinds. Of calls of the same kind and size, the mean of the times' logarithms is
/// taken, weighted by their shares: short calls in long steps are measured less precisely.
pub(crate) fn by_kind(samples: Vec<StepSample>) -> Vec<MeasuredCalls> {
    let mut all: BTreeMap<String, BTreeMap<[u64; 3], [f64; 2]>> = BTreeMap::new();
    for StepSample { size: CallSize { kind, size }, seconds, share } in samples {
        let [sum, shares] = all.entry(kind).or_default().entry(size.map(f64::to_bits)).or_default();
        *sum += share * seconds.ln();
        *shares += share;
    }
    let sample = |(size, [sum, shares]): ([u64; 3], [f64; 2])| {
        let [a, b, c] = size.map(f64::from_bits);
        [a, b, c, legible((sum / shares).exp())]
    };
    let calls = |(call, sizes): (String, BTreeMap<_, _>)| MeasuredCalls {
        call,
        samples: sizes.into_iter().map(sample).collect(),
    };
    all.into_iter().map(calls).collect()
}

/// A measured step.
pub(crate) struct MeasuredStep {
    /// Model of the device.
    pub(crate) device_model: String,
    /// Median seconds.
    pub(crate) seconds: f64,
    /// Families of calls or, of several ranks, phases of the step.
    pub(crate) families: Vec<FamilyDifference>,
    /// Calls by kind and size; empty for several ranks and on a CPU.
    pub(crate) calls: Vec<CallDifference>,
}

/// Predicts a step of `config` on a device; `None` on a CPU.
pub(crate) fn predict(config: RunConfig, device: &PlanDevice) -> Result<Option<StepTime>> {
    let description = device.description(DeviceRanks::from_config(&config));
    let setup = prepare_shapes(config, Placement::Meta(description))?;
    Ok(StepTime::predict(&setup, device)?)
}

/// Measures a step of `config` on its ranks. `device` describes the device for the predicted times of calls.
pub(crate) fn measure(
    config: RunConfig,
    predicted: Option<&StepTime>,
    device: &PlanDevice,
    options: &BenchOptions,
) -> Result<MeasuredStep> {
    if config.world_size() > 1 {
        return of_ranks(config, predicted, options);
    }
    of_one_rank(config, predicted, device, options)
}

fn of_ranks(config: RunConfig, predicted: Option<&StepTime>, options: &BenchOptions) -> Result<MeasuredStep> {
    let own = options.clone();
    let (_, (device_model, seconds, phases)) = measure_ranks(config, options.device, move |worker| {
        let steps = timed_steps(worker, &mut None, &own)?;
        let phases = worker.phases().times()?.median;
        let device_model = worker.device().description().model.clone();
        Ok(Some((device_model, median(&steps.seconds), phases)))
    })?;
    let family = |phase: Phase| FamilyDifference {
        family: phase.name().to_owned(),
        predicted_seconds: predicted.map_or(0.0, |time| time.parts.of_phase(phase)),
        measured_seconds: phases[phase.index()] as f64 / 1e6,
    };
    let families = Phase::ALL.into_iter().map(family).collect();
    Ok(MeasuredStep { device_model, seconds, families, calls: Vec::new() })
}

fn of_one_rank(
    mut config: RunConfig,
    predicted: Option<&StepTime>,
    device: &PlanDevice,
    options: &BenchOptions,
) -> Result<MeasuredStep> {
    config.train.steps = u64::MAX;
    let ChosenPlacement { placement, .. } =
        ChosenPlacement::find(options.device, &mut config, &Startup::alone(), None)?;
    let (setup, _) = cycled(recompute::settle_soon(plan::prepare(config, placement)?)?);
    // Events are recorded, as in a run.
    let setup = Setup { history: UNPLANNED_EVENTS, ..setup };
    run::prepare_kernels(&setup)?;
    let mut worker = Worker::new(&setup, Communicator::solo())?;
    let is_gpu = worker.device().backend() == Backend::Cuda;
    let steps = timed_steps(&mut worker, &mut None, options)?;
    let seconds = median(&steps.seconds);
    let is_replayed = worker.replayed_steps() > 0;
    let device_model = worker.device().description().model.clone();
    drop(worker);
    let timed = TimedStep { seconds, is_replayed, predicted: predicted.map(|time| time.step_seconds) };
    let calls = if is_gpu { by_call(setup, device, timed, options.warm_up_time)? } else { Vec::new() };
    Ok(MeasuredStep { device_model, seconds, families: by_family(&calls), calls: by_size(calls) })
}

/// One timed call.
struct ComparedCall {
    family: &'static str,
    size: CallSize,
    predicted: f64,
    measured: f64,
}

/// A step that was timed as a whole.
struct TimedStep {
    seconds: f64,
    is_replayed: bool,
    /// Predicted seconds.
    predicted: Option<f64>,
}

/// Returns the calls of a step. Times in a profile include events, and the GPU's clocks differ there, so they
/// are scaled to the step. If the step waits for the host or is predicted to wait, they are not scaled.
fn by_call(
    setup: Setup,
    device: &PlanDevice,
    TimedStep { seconds, is_replayed, predicted: predicted_step }: TimedStep,
    warm_up: Duration,
) -> Result<Vec<ComparedCall>> {
    // The calls of a CUDA graph cannot be timed one by one.
    let mut config = (*setup.config).clone();
    config.train.graphs = Graphs::Off;
    // A new learning rate is copied to the device, as in the planned step.
    config.optim.warmup_steps = RISING_STEPS;
    let setup = Setup { config: Arc::new(config), ..setup };
    let predicted = predicted_calls(&setup, device, 0)?;
    if predicted.len() > MOST_CALLS {
        return Ok(Vec::new());
    }
    let mut worker = Worker::new(&setup, Communicator::solo())?;
    let began = Instant::now();
    let mut step = 0;
    // A GPU at its power limit lowers its clock only after some tenths of a second.
    while step < FIRST_STEPS || began.elapsed() < warm_up {
        worker.step(step)?;
        worker.scalars(step)?;
        step += 1;
    }
    let profiles = (0..PROFILES).map(|more| profile(&mut worker, step + more));
    let profiles = profiles.collect::<Result<Vec<_>>>()?;
    drop(worker);
    let (logged, times): (Vec<LoggedCall>, Vec<f64>) =
        predicted.into_iter().filter(|(call, _)| is_timed(call)).unzip();
    if let Some(difference) = profiles.iter().find_map(|profile| difference(&logged, profile)) {
        return Err(BenchError::Refused(format!("a step differs from its plan: {difference}")));
    }
    let timed = |index: usize| {
        let times: Vec<_> = profiles.iter().map(|calls| f64::from(calls[index].milliseconds) / 1e3).collect();
        (&profiles[0][index], median(&times))
    };
    let timed: Vec<_> = (0..logged.len()).map(timed).collect();
    let computed = timed.iter().filter(|(call, _)| call.stream == StreamKind::Compute);
    let between: Vec<f64> = computed.map(|(_, seconds)| *seconds).collect();
    let gain = device.graph_gain_seconds();
    let step = seconds + if is_replayed { gain * between.len() as f64 } else { 0.0 };
    let [timed_call, call] = [between.iter().sum(), step].map(|sum: f64| sum / between.len().max(1) as f64);
    let event = added_by_events(timed_call, call);
    let sum: f64 = between.iter().map(|seconds| without(event, *seconds)).sum();
    let computed = logged.iter().zip(&times).zip(&timed);
    let computed = computed.filter(|(_, (call, _))| call.stream == StreamKind::Compute);
    let of_calls: f64 = computed.map(|((_, predicted), _)| predicted).sum();
    let graphs = step - seconds;
    let waits = predicted_step.is_some_and(|predicted| predicted + graphs > WAITING * of_calls);
    let factor = if waits { 1.0 } else { factor_of_step(step / sum.max(f64::MIN_POSITIVE)) };
    let sizes = call_sizes(&setup, device);
    let mut calls = Vec::new();
    for ((call, predicted), (timed, seconds)) in logged.iter().zip(times).zip(timed) {
        let Some(size) = sizes.size(call) else { continue };
        let own = without(event, seconds);
        let measured = if timed.stream == StreamKind::Compute { own * factor } else { own };
        calls.push(ComparedCall { family: timed.family, size, predicted, measured });
    }
    Ok(calls)
}

/// Returns the seconds that the events around a call add to it, if the calls of a step take `timed` seconds
/// on average between events, and `seconds` without. The clock is not quite the same, which long calls show
/// more than events: the difference is divided by the variances of both.
fn added_by_events(timed: f64, seconds: f64) -> f64 {
    let [typical, deviation] = EVENT;
    let [event, clock] = [deviation, CLOCK * seconds].map(|deviation| deviation.powi(2));
    let excess = timed - seconds - typical;
    (typical + excess * event / (event + clock)).clamp(0.0, MOST_EVENT)
}

/// Sets the predicted seconds of the calls of a step of `setup`.
pub(crate) fn predict_calls(calls: &mut [CallDifference], setup: &Setup, device: &PlanDevice) -> Result<()> {
    let mut seconds: BTreeMap<(String, [u64; 3]), f64> = BTreeMap::new();
    let sizes = call_sizes(setup, device);
    for (call, predicted) in predicted_calls(setup, device, 0)? {
        if let Some(CallSize { kind, size }) = sizes.size(&call) {
            *seconds.entry((kind, size.map(f64::to_bits))).or_default() += predicted;
        }
    }
    for call in calls {
        let key = (call.call.clone(), call.size.map(f64::to_bits));
        call.predicted_seconds = seconds.get(&key).copied().unwrap_or(call.predicted_seconds);
    }
    Ok(())
}

/// Returns what determines the sizes of the calls of a step of one rank.
fn call_sizes(setup: &Setup, device: &PlanDevice) -> CallSizes {
    CallSizes::new(1, device.multiprocessors, setup.config.precision.tf32)
}

fn by_family(calls: &[ComparedCall]) -> Vec<FamilyDifference> {
    let mut families: Vec<FamilyDifference> = Vec::new();
    for call in calls {
        let index = families.iter().position(|family| family.family == call.family);
        let index = index.unwrap_or_else(|| {
            let family = call.family.to_owned();
            families.push(FamilyDifference { family, predicted_seconds: 0.0, measured_seconds: 0.0 });
            families.len() - 1
        });
        families[index].predicted_seconds += call.predicted;
        families[index].measured_seconds += call.measured;
    }
    families
}

fn by_size(calls: Vec<ComparedCall>) -> Vec<CallDifference> {
    let mut all: BTreeMap<(String, [u64; 3]), CallDifference> = BTreeMap::new();
    for ComparedCall { size: CallSize { kind, size }, predicted, measured, .. } in calls {
        // Sizes are nonnegative, so their bits sort like the numbers.
        let entry = all.entry((kind.clone(), size.map(f64::to_bits))).or_insert(CallDifference {
            call: kind,
            size,
            calls: 0,
            predicted_seconds: 0.0,
            measured_seconds: 0.0,
        });
        entry.calls += 1;
        entry.predicted_seconds += predicted;
        entry.measured_seconds += measured;
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_calls_do_not_tell_what_events_add() {
        let added = |timed: f64, seconds: f64| 1e6 * added_by_events(1e-6 * timed, 1e-6 * seconds);
        // Of calls of 6 µs, 2.3 more are the events'. Of calls of 300 µs, 1 % less is the clock's.
        assert!((added(8.3, 6.0) - 2.27).abs() < 0.01, "{}", added(8.3, 6.0));
        assert!((added(297.0, 300.0) - 1.88).abs() < 0.01, "{}", added(297.0, 300.0));
        assert_eq!([added(20.0, 6.0), added(1.0, 6.0)], [1e6 * MOST_EVENT, 0.0]);
    }

    #[test]
    fn times_of_one_size_are_weighted_by_their_shares() {
        let sample = |size: f64, seconds, share| StepSample {
            size: CallSize { kind: "zero".to_owned(), size: [1.0, size, 1.0] },
            seconds,
            share,
        };
        let samples = vec![sample(8.0, 4e-6, 0.01), sample(16.0, 9e-6, 0.5), sample(8.0, 2e-6, 0.03)];
        let calls = by_kind(samples);
        assert_eq!(calls.len(), 1);
        // The mean of the logarithms: 2e-6 · 2^(1/4).
        assert_eq!(calls[0].samples, [[1.0, 8.0, 1.0, 2.378e-6], [1.0, 16.0, 1.0, 9e-6]]);
    }
}
