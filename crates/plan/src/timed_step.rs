//! Predicts a training step from its ranks' calls, timed with a device's description.

use collective::Axis;
use config::RunConfig;
use telemetry::Phase;
use worker::build;
use worker::{Placement, Setup, never_captured};

use crate::call_times::CallTimes;
use crate::clock::{CallTime, ClockParts, Idle, RankCalls, simulate};
use crate::error::Result;
use crate::imitated::PlanDevice;
use crate::overhead::DeviceRanks;
use crate::prepare::prepare_shapes;
use crate::rates::DeviceRates;
use crate::roles::on_threads;
use crate::step_calls::{step_calls, with_peers};
use crate::step_time::{Basis, FamilySeconds, StepEnergy, StepParts, StepTime};
use crate::step_work::StepWork;
use crate::surroundings::GPUS_PER_HOST;

/// Maximum number of a pipeline's passes in a step; simulating more would take more than a few seconds.
const MOST_PASSES: usize = 1 << 13;

/// A predicted step, with the times of its passes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimedStep {
    pub(crate) time: StepTime,
    /// Begin and end of each pass in seconds, in order, for each pipeline rank.
    pub(crate) passes: Vec<Vec<[f64; 2]>>,
}

impl StepTime {
    /// Predicts a step of a run on GPUs like `device`; `None` on a CPU, whose calls have no description, and
    /// for pipelines with thousands of passes in a step.
    pub fn predict(setup: &Setup, device: &PlanDevice) -> Result<Option<Self>> {
        Ok(TimedStep::predict(setup, device)?.map(|step| step.time))
    }

    /// Predicts a step of a configuration on GPUs like `device`, including the model FLOPs utilization.
    pub fn of_config(config: &RunConfig, device: &PlanDevice) -> Result<Option<Self>> {
        let description = device.description(DeviceRanks::from_config(config));
        let setup = prepare_shapes(config.clone(), Placement::Meta(description))?;
        Self::predict(&setup, device)?.map(|time| time.with_mfu(&setup, device)).transpose()
    }

    /// Adds the model FLOPs utilization on `device`.
    pub fn with_mfu(self, setup: &Setup, device: &PlanDevice) -> Result<Self> {
        let (rates, _) = device.rates_or_shipped()?;
        let work = StepWork::at(&setup.config, &setup.dataset, &setup.placement.description(), &rates)?;
        Ok(StepTime { mfu: Some(work.mfu(self.step_seconds)), ..self })
    }
}

impl TimedStep {
    /// Predicts a step like [`StepTime::predict`]. If sequence lengths differ between steps, the time is a
    /// mean over the lengths, weighted by their shares of the steps, and the passes are those of the longest.
    pub(crate) fn predict(setup: &Setup, device: &PlanDevice) -> Result<Option<Self>> {
        let Some(lengths) = setup.dataset.source.lengths() else {
            return Self::predict_length(setup, device);
        };
        let mut steps = Vec::new();
        let mut passes = Vec::new();
        for (length, share) in lengths.shares() {
            let setup = Setup { dataset: setup.dataset.at_length(length), ..setup.clone() };
            let Some(step) = Self::predict_length(&setup, device)? else { return Ok(None) };
            steps.push((share, step.time));
            passes = step.passes;
        }
        Ok(StepTime::mean(steps).map(|time| TimedStep { time, passes }))
    }

    /// Predicts a step whose sequences all have the same length.
    fn predict_length(setup: &Setup, device: &PlanDevice) -> Result<Option<Self>> {
        let schedule = &setup.blueprint.schedule;
        let passes = schedule.actions.iter().flatten().filter(|action| action.kind.is_compute()).count();
        if !device.is_gpu() || (schedule.ranks > 1 && passes > MOST_PASSES) {
            return Ok(None);
        }
        let config = &setup.config;
        let (rates, _) = device.rates_or_shipped()?;
        let times = call_times(config, device, &rates);
        // Ranks of other pipelines do the same at the same time.
        let grid = config.parallel.grid().seen_from(0)?;
        let ranks = grid.group(Axis::Pipeline).ranks;
        let is_replayed = never_captured(config).is_none();
        let linked = with_peers(setup, device);
        let calls = on_threads(&ranks, |rank| {
            let log = step_calls(&linked, rank)?;
            let known = times.known(&log);
            let busy = match config.parallel.shares_gpu() {
                true => times.busy_part(&log, &known, config.world_size()),
                false => 1.0,
            };
            let calls = RankCalls::new(rank, log, |call| CallTime {
                device: match is_replayed {
                    true => times.replaying_device(call, &known),
                    false => times.device(call, &known),
                },
                host: if is_replayed { times.replaying_host(call) } else { times.host(call) },
                is_measured: times.is_measured(call),
                compute_speed: times.compute_speed(call),
            });
            Ok((calls.with_sequences(grid.seen_from(rank)?.group(Axis::Context).ranks), busy))
        })?;
        let (calls, busy): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let Some(mut parts) = simulate(&calls) else { return Ok(None) };
        if config.parallel.shares_gpu() {
            wait_for_gpu(&mut parts, &busy);
        }
        let longest = parts.iter().zip(&calls).max_by(|(a, _), (b, _)| a.work().total_cmp(&b.work()));
        let Some((longest, calls)) = longest else { return Ok(None) };
        let family = |(family, calls, seconds)| FamilySeconds { family, calls, seconds };
        let (seconds, tokens, ranks) =
            (longest.seconds(), build::tokens_per_step(config, &setup.dataset), config.world_size());
        let idle = |parts: &ClockParts| parts.idle(Idle::Pipeline) / parts.seconds();
        let tokens_per_second = tokens as f64 / seconds;
        let energy = device.power.as_ref().map(|power| {
            let (watts, source) = power.of_step();
            StepEnergy { joules: watts * seconds * devices(config) as f64, watts, source }
        });
        let time = StepTime {
            device_model: device.model.clone(),
            basis: device.basis(),
            step_seconds: seconds,
            parts: StepParts::from_clock(longest),
            pipeline_idle: parts.iter().map(idle).sum::<f64>() / parts.len() as f64,
            stages: parts.iter().map(StepParts::from_clock).collect(),
            tokens,
            unit: config.model.examples().rate(),
            tokens_per_second,
            tokens_per_second_per_rank: tokens_per_second / ranks as f64,
            ranks,
            is_replayed,
            mfu: None,
            hours: seconds * config.train.steps as f64 / 3600.0,
            energy,
            families: calls.families().into_iter().map(family).collect(),
            measured_share: calls.measured_share(),
            assumed: assumptions(config, device)?,
            steps: config.train.steps,
        };
        Ok(Some(TimedStep { time, passes: parts.into_iter().map(|parts| parts.passes).collect() }))
    }
}

/// Adds waits of stages that share a GPU: a step takes at least the sum of all stages' work, times the part
/// of the GPU that it keeps `busy`.
fn wait_for_gpu(parts: &mut [ClockParts], busy: &[f64]) {
    let work: f64 = parts.iter().zip(busy).map(|(parts, busy)| busy * parts.work()).sum();
    for own in parts {
        own.wait(Idle::Pipeline, (work - own.seconds()).max(0.0));
    }
}

impl StepParts {
    fn from_clock(parts: &ClockParts) -> Self {
        let phase_seconds = |phase: Phase| parts.section(phase.name());
        StepParts {
            inputs_seconds: phase_seconds(Phase::Inputs) + parts.idle(Idle::Inputs),
            forward_seconds: phase_seconds(Phase::Forward),
            backward_seconds: phase_seconds(Phase::Backward),
            pipeline_seconds: phase_seconds(Phase::Pipeline) + parts.idle(Idle::Pipeline),
            layers_seconds: phase_seconds(Phase::Exchange) + parts.idle(Idle::Layers),
            sequences_seconds: parts.idle(Idle::Sequences),
            reduction_seconds: phase_seconds(Phase::Reduce) + parts.idle(Idle::Reduction),
            offload_seconds: parts.idle(Idle::Offload),
            optimizer_seconds: phase_seconds(Phase::Update),
            host_seconds: parts.idle(Idle::Host) + parts.section(""),
        }
    }
}

impl PlanDevice {
    /// Returns the kind of data on which predictions for the device are based.
    pub(crate) fn basis(&self) -> Basis {
        match &self.rates {
            None => Basis::AnotherModel,
            Some(rates) if rates.assumed.iter().any(|key| key == "flops_bf16") => Basis::DataSheet,
            Some(_) if self.times.is_empty() => Basis::MeasuredRates,
            Some(_) => Basis::MeasuredCalls,
        }
    }
}

/// Returns the call times of a configuration on a device with `rates`.
pub(crate) fn call_times(config: &RunConfig, device: &PlanDevice, rates: &DeviceRates) -> CallTimes {
    let grid = config.parallel.grid();
    // Stages of a pipeline mostly alternate.
    let sharing =
        if config.parallel.shares_gpu() { grid.world_size() / grid.size(Axis::Pipeline) } else { 1 };
    CallTimes::new(device, rates.clone(), &config.precision, sharing)
}

fn devices(config: &RunConfig) -> usize {
    if config.parallel.shares_gpu() { 1 } else { config.world_size() }
}

/// Returns the names of rates that a prediction for `config` uses and that the device's description omits or
/// assumes.
///
/// # Errors
/// The embedded description of the default device is invalid, which a test rules out.
pub(crate) fn assumptions(config: &RunConfig, device: &PlanDevice) -> Result<Vec<String>> {
    let (rates, mut assumed) = device.rates_or_shipped()?;
    assumed.extend(rates.omitted().into_iter().map(str::to_owned));
    let devices = devices(config);
    let gpus_per_host = device.gpus_per_host();
    assumed.retain(|key| match &**key {
        "flops_tf32" => config.precision.tf32,
        "flops_fp8" => config.fp8.is_some(),
        "link_bytes" | "link_seconds" => devices > 1,
        _ => true,
    });
    if devices > 1 && device.gpus_per_host.is_none() {
        assumed.push(format!("{GPUS_PER_HOST} GPUs of a host (gpus_per_host)"));
    }
    if devices > gpus_per_host {
        match &device.network {
            None => {
                let gigabytes = rates.network() / 1e9;
                assumed.push(format!("{gigabytes} GB/s for each GPU between hosts ([network])"));
            }
            Some(network) => {
                let keys = network.assumed.iter().map(|key| format!("{key} of [network]"));
                assumed.extend(keys);
                assumed.extend(network.seconds.is_none().then(|| "seconds of [network]".to_owned()));
            }
        }
    }
    Ok(assumed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_that_share_a_gpu_wait_for_the_part_that_is_busy() {
        let stage = || ClockParts { sections: vec![("forward", 1.0)], ..ClockParts::default() };
        for (busy, expected) in [([1.0, 1.0], 2.0), ([1.0, 0.5], 1.5), ([0.5, 0.5], 1.0)] {
            let mut parts = [stage(), stage()];
            wait_for_gpu(&mut parts, &busy);
            assert!(parts.iter().all(|parts| (parts.seconds() - expected).abs() < 1e-12), "{busy:?}");
        }
    }
}
