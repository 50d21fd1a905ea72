//! The step benchmark: times steps of the real worker on the host, and the single calls of one step on the
//! device.

use collective::Communicator;
use device::cuda::TimedCall;
use memory::CategoryBytes;

use crate::cycled::cycled;
use crate::error::Result;
use crate::options::{BenchOptions, median};
use crate::rates::{Rates, rates};
use crate::steps::{TimedSteps, timed_steps};
use crate::timeline;
use config::RunConfig;
use plan::recompute;
use planned::UNPLANNED_EVENTS;
use run::ChosenPlacement;
use run::Startup;
use telemetry::Phase;
use worker::build;
use worker::{Setup, Worker};

/// Times of one kernel family in a step.
#[derive(Clone, Debug)]
pub struct FamilyTime {
    /// Name of the family.
    pub family: &'static str,
    /// Number of launches.
    pub calls: usize,
    /// Total milliseconds, with each launch timed alone.
    pub milliseconds: f64,
    /// Milliseconds that the calls' bytes or FLOPs, whichever takes longer, would take at the device's
    /// measured rates.
    pub floor_milliseconds: f64,
    /// FLOPs of all launches.
    pub flops: u64,
}

/// Result of measuring a step.
#[derive(Clone, Debug)]
pub struct StepMeasure {
    /// Model of the device.
    pub model: String,
    /// Versions of the compute libraries.
    pub libraries: String,
    /// Reason why this device was chosen.
    pub reason: String,
    /// Number of parameters, each counted once.
    pub parameters: usize,
    /// Number of tokens or samples in a step.
    pub tokens: u64,
    /// Unit of the throughput: tokens/s, samples/s or images/s.
    pub unit: &'static str,
    /// Seconds of each timed step.
    pub seconds: Vec<f64>,
    /// Milliseconds of the median step in which the device waits for input; `None` if not timed.
    pub input_milliseconds: Option<f64>,
    /// Number of synthetic micro-batches used in rotation; `None` if each is newly generated.
    pub cycled: Option<usize>,
    /// The loss of step `warm_up + steps`, counted from 1: the last step, unless the warm-up took more steps.
    pub loss: f32,
    /// Peaks of allocated and of reserved bytes.
    pub peaks: (u64, u64),
    /// Bytes by category at the peak of allocated bytes.
    pub at_peak: CategoryBytes,
    /// Times of one step by kernel family, the longest first; only on a GPU.
    pub families: Vec<FamilyTime>,
    /// Measured rates of the device; only on a GPU.
    pub rates: Option<Rates>,
}

impl StepMeasure {
    /// Returns the median step time in seconds.
    pub fn median(&self) -> f64 {
        median(&self.seconds)
    }

    /// Returns the tokens or samples per second of the median step.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.median()
    }

    /// Returns the fraction of the device's measured FLOP/s that the median step reaches.
    pub fn utilisation(&self) -> Option<f64> {
        let flops: u64 = self.families.iter().map(|family| family.flops).sum();
        Some(flops as f64 / self.median() / self.rates?.flops_per_second)
    }
}

/// Runs and times a few steps of `config`.
pub fn bench_step(mut config: RunConfig, options: &BenchOptions) -> Result<StepMeasure> {
    config.train.steps = u64::MAX;
    let ChosenPlacement { placement, reason } =
        ChosenPlacement::find(options.device, &mut config, &Startup::alone(), None)?;
    // Events are recorded, as in a run.
    let (setup, cycled) = cycled(recompute::settle_soon(plan::prepare(config, placement)?)?);
    let setup = Setup { history: UNPLANNED_EVENTS, ..setup };
    run::prepare_kernels(&setup)?;
    let mut worker = Worker::new(&setup, Communicator::solo())?;
    let TimedSteps { seconds, loss, next, .. } = timed_steps(&mut worker, &mut None, options)?;
    let statistics = worker.device().statistics();
    let at_peak = worker.device().with_allocator(|allocator| allocator.peak_category_bytes());
    let inputs = worker.phases().times()?.median[Phase::Inputs.index()];
    let mut calls = Vec::new();
    if options.profile {
        worker.device().begin_profile_ahead()?;
        worker.step(next)?;
        calls = worker.device().end_profile()?;
    }
    if let Some(directory) = &options.trace {
        timeline::write(&mut worker, &mut None, next + 1, &directory.join("step.json"))?;
    }
    let rates = match calls.is_empty() {
        true => None,
        false => Some(rates(worker.device())?),
    };
    let description = worker.device().description();
    Ok(StepMeasure {
        model: description.model.clone(),
        libraries: description.libraries.clone(),
        reason,
        parameters: worker.parameters(),
        tokens: build::positions_per_step(&setup.config),
        unit: setup.config.model.examples().rate(),
        seconds,
        input_milliseconds: Some(inputs as f64 / 1e3),
        cycled,
        loss,
        at_peak,
        peaks: (statistics.peak_allocated(), statistics.peak_reserved()),
        families: rates.map(|rates| by_family(&calls, rates)).unwrap_or_default(),
        rates,
    })
}

fn by_family(calls: &[TimedCall], rates: Rates) -> Vec<FamilyTime> {
    let mut families: Vec<FamilyTime> = Vec::new();
    for call in calls {
        let floor = (call.work.bytes as f64 / rates.bytes_per_second)
            .max(call.work.flops as f64 / rates.flops_per_second);
        let index = families.iter().position(|family| family.family == call.family).unwrap_or(families.len());
        if index == families.len() {
            let family = call.family;
            families.push(FamilyTime {
                family,
                calls: 0,
                milliseconds: 0.0,
                floor_milliseconds: 0.0,
                flops: 0,
            });
        }
        let family = &mut families[index];
        family.calls += 1;
        family.milliseconds += f64::from(call.milliseconds);
        family.floor_milliseconds += 1e3 * floor;
        family.flops += call.work.flops;
    }
    families.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
    families
}
