//! The predicted time of a training step: the calls that its ranks make, timed by a device's description.

use std::fmt;

use collective::Axis;
use serde::Serialize;
use telemetry::Phase;
use telemetry::table::aligned;
use telemetry::units::grouped;
use worker::Setup;
use worker::build;

use crate::call_times::CallTimes;
use crate::clock::{CallTime, Idle, RankCalls, simulate};
use crate::error::Result;
use crate::imitated::PlanDevice;
use crate::roles::on_threads;
use crate::step_calls::step_calls;
use crate::step_work::StepWork;

/// Most passes of a pipeline in a step: others take more than a few seconds.
const MOST_PASSES: usize = 1 << 13;

/// The calls of a family in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FamilySeconds {
    /// Family of the kernel, or `matmul`, `convolution`, `copy` or the operation between ranks.
    pub family: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Seconds on the device.
    pub seconds: f64,
}

/// Predicted seconds of a step, on the compute stream of the rank that computes longest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// Seconds of the step.
    pub step_seconds: f64,
    /// Copies of inputs, and waits for them.
    pub inputs_seconds: f64,
    /// Forward passes.
    pub forward_seconds: f64,
    /// Backward passes, with recomputation.
    pub backward_seconds: f64,
    /// Waits for other stages of the pipeline.
    pub pipeline_seconds: f64,
    /// Waits for ranks that share layers or sequences.
    pub exchange_seconds: f64,
    /// Waits for gradients or weights of other ranks.
    pub reduction_seconds: f64,
    /// Norm, clipping and update.
    pub optimizer_seconds: f64,
    /// Waits for the host.
    pub host_seconds: f64,
    /// Tokens of a step, or samples of models without tokens.
    pub tokens: u64,
    /// Unit of the throughput: tokens/s, samples/s or images/s.
    pub unit: &'static str,
    /// Number of ranks.
    pub ranks: usize,
    /// Model FLOPs utilization, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Hours of all steps of the run.
    pub hours: f64,
    /// Calls of the step by family, the longest first.
    pub families: Vec<FamilySeconds>,
    /// Share of the time on the device in kinds of calls that were measured on it.
    pub measured_share: f64,
    /// Rates that were assumed, not measured.
    pub assumed: Vec<String>,
}

impl StepTime {
    /// Predicts a step of a run on GPUs like `device`; `None` on a CPU, whose calls no description has, and
    /// for pipelines with thousands of passes in a step.
    ///
    /// # Errors
    /// Errors of the run, among them out of memory.
    pub fn of(setup: &Setup, device: &PlanDevice) -> Result<Option<Self>> {
        let schedule = &setup.blueprint.schedule;
        let passes = schedule.actions.iter().flatten().filter(|action| action.kind.is_compute()).count();
        if !device.is_gpu() || (schedule.ranks > 1 && passes > MOST_PASSES) {
            return Ok(None);
        }
        let config = &setup.config;
        let (rates, mut assumed) = device.rates_or_shipped()?;
        assumed.extend(rates.omitted().into_iter().map(str::to_owned));
        let sharing = if config.parallel.shares_gpu() { config.world_size() } else { 1 };
        let times = CallTimes::new(device, rates.clone(), config.precision.tf32, sharing);
        // Ranks of other pipelines do the same at the same time.
        let ranks = config.parallel.grid().seen_from(0)?.group(Axis::Pipeline).ranks;
        let calls = on_threads(&ranks, |rank| {
            let log = step_calls(setup, rank)?;
            let matmuls = times.matmuls(&log);
            Ok(RankCalls::new(rank, log, |call| CallTime {
                device: times.device(call, &matmuls),
                host: times.host(call),
                is_measured: times.is_measured(call),
            }))
        })?;
        let Some(parts) = simulate(&calls) else { return Ok(None) };
        let longest = parts.iter().zip(&calls).max_by(|(a, _), (b, _)| a.work().total_cmp(&b.work()));
        let Some((longest, calls)) = longest else { return Ok(None) };
        let family = |(family, calls, seconds)| FamilySeconds { family, calls, seconds };
        let families = calls.families().into_iter().map(family).collect();
        let of = |phase: Phase| longest.section(phase.name());
        let seconds = longest.seconds();
        Ok(Some(StepTime {
            step_seconds: seconds,
            inputs_seconds: of(Phase::Inputs) + longest.idle(Idle::Inputs),
            forward_seconds: of(Phase::Forward),
            backward_seconds: of(Phase::Backward),
            pipeline_seconds: of(Phase::Pipeline) + longest.idle(Idle::Pipeline),
            exchange_seconds: of(Phase::Exchange) + longest.idle(Idle::Exchange),
            reduction_seconds: of(Phase::Reduce) + longest.idle(Idle::Reduction),
            optimizer_seconds: of(Phase::Update),
            host_seconds: longest.idle(Idle::Host) + longest.section(""),
            tokens: build::tokens_per_step(config),
            unit: config.model.examples().rate(),
            ranks: config.world_size(),
            mfu: None,
            hours: seconds * config.train.steps as f64 / 3600.0,
            families,
            measured_share: calls.measured_share(),
            assumed,
        }))
    }

    /// Returns the time with the model FLOPs utilization on `device`.
    ///
    /// # Errors
    /// Errors of building and running the model's layers on Meta.
    pub fn with_mfu(self, setup: &Setup, device: &PlanDevice) -> Result<Self> {
        let (rates, _) = device.rates_or_shipped()?;
        let work = StepWork::at(&setup.config, &setup.dataset, &setup.placement.description(), &rates)?;
        Ok(StepTime { mfu: Some(work.mfu(self.step_seconds)), ..self })
    }

    /// Tokens per second of all ranks.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.step_seconds
    }

    /// Seconds of the parts, by name, in the order of a step.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, f64); 8] {
        [
            ("inputs", self.inputs_seconds),
            ("forward", self.forward_seconds),
            ("backward", self.backward_seconds),
            ("idle in the pipeline", self.pipeline_seconds),
            ("waiting for shared layers and sequences", self.exchange_seconds),
            ("waiting for gradients and weights", self.reduction_seconds),
            ("optimizer", self.optimizer_seconds),
            ("waiting for the host", self.host_seconds),
        ]
    }
}

impl fmt::Display for StepTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |seconds: f64| format!("{:.2} ms", 1e3 * seconds);
        writeln!(f, "predicted: {} a step", milliseconds(self.step_seconds))?;
        let is_shown = |(_, seconds): &(&str, f64)| *seconds >= 5e-6;
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / self.step_seconds);
        let row = |(name, seconds): (&str, f64)| vec![name.to_owned(), milliseconds(seconds), share(seconds)];
        let rows: Vec<_> = self.parts().into_iter().filter(is_shown).map(row).collect();
        write!(f, "{}", aligned(&rows, 1, &[]))?;
        let rate = self.tokens_per_second();
        write!(f, "{} {}, ", grouped(rate as u64), self.unit)?;
        if self.ranks > 1 {
            write!(f, "{} for each GPU, ", grouped((rate / self.ranks as f64) as u64))?;
        }
        if let Some(mfu) = self.mfu {
            write!(f, "MFU {:.1} %, ", 100.0 * mfu)?;
        }
        match self.hours {
            hours if hours < 1.0 => writeln!(f, "{:.1} minutes for all steps", 60.0 * hours)?,
            hours => writeln!(f, "{hours:.1} hours for all steps")?,
        }
        let measured = 100.0 * self.measured_share;
        write!(f, "{measured:.0} % of the device's time is in calls measured on such a device")?;
        match self.assumed.as_slice() {
            [] => writeln!(f),
            names => writeln!(f, "; assumed, not measured: {}", names.join(", ")),
        }
    }
}
