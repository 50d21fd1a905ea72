//! The step benchmark: the real worker on random tokens, timed from the host, and one step call by call on the device.

use std::path::PathBuf;
use std::time::Duration;

use collective::Communicator;
use device::cuda::TimedCall;
use device::{Category, DType, Device, Matmul, Operand, Request};
use tensor::{Tensor, ops};

use crate::build;
use crate::error::Result;
use crate::expected::UNPLANNED_EVENTS;
use crate::placement::{DeviceChoice, Placed};
use crate::recompute;
use crate::startup::Startup;
use crate::worker::{Setup, Worker};
use config::RunConfig;
use steps::{TimedSteps, timed_steps};

mod pipeline;
mod products;
mod scaling;
mod steps;
mod timeline;

pub use pipeline::{PipelineMeasure, PipelineRank, bench_pipeline};
pub use products::{ProductTime, ProductsMeasure, ProductsOptions, bench_products};
pub use scaling::{ScalingCase, bench_scaling, bench_scaling_as};

/// How long a GPU warms up where nobody says otherwise: its clocks fall in the first seconds of work.
pub const GPU_WARM_UP: Duration = Duration::from_secs(5);

/// How long to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// What to compute on.
    pub device: DeviceChoice,
    /// Steps that are timed.
    pub steps: u64,
    /// Steps before them, at least.
    pub warm_up: u64,
    /// How long these take, at least (see [`GPU_WARM_UP`]).
    pub warm_up_time: Duration,
    /// A directory for two more steps as a timeline.
    pub trace: Option<PathBuf>,
}

/// Calls of one kernel family in a step.
#[derive(Clone, Debug)]
pub struct FamilyTime {
    /// Its name.
    pub family: &'static str,
    /// Launches.
    pub calls: usize,
    /// Milliseconds of all of them, each timed alone.
    pub milliseconds: f64,
    /// Milliseconds that their bytes and operations take at the device's measured rates, the larger of both for
    /// every call.
    pub floor_milliseconds: f64,
    /// Operations.
    pub flops: u64,
}

/// What the device does at best, measured in the same process.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// bf16 matrix products of 8192 × 8192 × 8192 on random values, in operations a second.
    pub flops_per_second: f64,
    /// A large copy inside the device, bytes read and written a second.
    pub bytes_per_second: f64,
}

/// What a measurement found.
#[derive(Clone, Debug)]
pub struct StepMeasure {
    /// The device's model.
    pub model: String,
    /// Versions of what computes on it.
    pub libraries: String,
    /// Why that device.
    pub reason: String,
    /// Parameters, each counted once.
    pub parameters: usize,
    /// Tokens of a step.
    pub tokens: u64,
    /// Seconds of every timed step.
    pub seconds: Vec<f64>,
    /// The loss of step `warm_up + steps`, counted from 1: the last one where the warm-up took no more steps.
    pub loss: f32,
    /// Most bytes allocated and reserved.
    pub peaks: (u64, u64),
    /// On a GPU: one step by kernel family, the longest first.
    pub families: Vec<FamilyTime>,
    /// On a GPU: what it does at best.
    pub rates: Option<Rates>,
}

impl StepMeasure {
    /// The median step in seconds.
    pub fn median(&self) -> f64 {
        median(&self.seconds)
    }

    /// Tokens a second at the median.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.median()
    }

    /// The step's operations over what the device could have done in its time.
    pub fn utilisation(&self) -> Option<f64> {
        let flops: u64 = self.families.iter().map(|family| family.flops).sum();
        Some(flops as f64 / self.median() / self.rates?.flops_per_second)
    }
}

pub(crate) fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs `config` for a few steps. Errors: those of a run.
pub fn bench_step(mut config: RunConfig, options: &BenchOptions) -> Result<StepMeasure> {
    config.train.steps = u64::MAX;
    let Placed { placement, reason } = Placed::find(options.device, &mut config, &Startup::alone(), None)?;
    // A run keeps its events too.
    let setup =
        Setup { history: UNPLANNED_EVENTS, ..recompute::settle_soon(Setup::new(config, placement)?)? };
    crate::run::prepare_kernels(&setup)?;
    let mut worker = Worker::new(&setup, Communicator::solo())?;
    let TimedSteps { seconds, loss, next, .. } = timed_steps(&mut worker, &mut None, options)?;
    let statistics = worker.device().statistics();
    worker.device().begin_profile();
    worker.step(next)?;
    let calls = worker.device().end_profile()?;
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
        tokens: build::tokens_per_step(&setup.config),
        seconds,
        loss,
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
        let place = families.iter().position(|family| family.family == call.family).unwrap_or(families.len());
        if place == families.len() {
            let family = call.family;
            families.push(FamilyTime {
                family,
                calls: 0,
                milliseconds: 0.0,
                floor_milliseconds: 0.0,
                flops: 0,
            });
        }
        let family = &mut families[place];
        family.calls += 1;
        family.milliseconds += f64::from(call.milliseconds);
        family.floor_milliseconds += 1e3 * floor;
        family.flops += call.work.flops;
    }
    families.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
    families
}

/// Rows and columns of the products that are timed.
const SIDE: usize = 8192;
/// Elements of the copies that are timed: 2 GiB.
const COPIED: usize = 1 << 29;
const ROUNDS: usize = 10;

pub(crate) fn rates(device: &Device) -> Result<Rates> {
    let request = Request::new(Category::Other, "rates");
    let (from, to) = (
        Tensor::zeros(device, [COPIED], DType::F32, request)?,
        Tensor::empty(device, [COPIED], DType::F32, request)?,
    );
    let seconds = timed(device, || Ok(to.copy_from(&from)?))?;
    Ok(Rates {
        flops_per_second: products_per_second(device, DType::Bf16)?,
        bytes_per_second: 2.0 * from.bytes() as f64 / seconds,
    })
}

/// Operations a second of large products of random values of this type.
pub(crate) fn products_per_second(device: &Device, dtype: DType) -> Result<f64> {
    let request = Request::new(Category::Other, "rates");
    let square = |name: &str| -> Result<Tensor> {
        let matrix = Tensor::empty(device, [SIDE, SIDE], dtype, request)?;
        ops::random::uniform(&matrix, 1, name, -1.0, 1.0)?;
        Ok(matrix)
    };
    let (a, b, out) = (square("a")?, square("b")?, square("out")?);
    let product = Matmul {
        m: SIDE,
        n: SIDE,
        k: SIDE,
        a: Operand::new(a.region(), dtype),
        b: Operand::new(b.region(), dtype),
        out: Operand::new(out.region(), dtype),
        accumulate: false,
        epilogue: device::Epilogue::None,
    };
    let seconds = timed(device, || Ok(device.matmul(&product)?))?;
    Ok(2.0 * (SIDE as f64).powi(3) / seconds)
}

/// Seconds that one call takes on the device, the median of several.
fn timed(device: &Device, run: impl Fn() -> Result<()>) -> Result<f64> {
    run()?;
    device.begin_profile();
    (0..ROUNDS).try_for_each(|_| run())?;
    let times: Vec<_> = device.end_profile()?.iter().map(|call| f64::from(call.milliseconds)).collect();
    Ok(median(&times) / 1e3)
}
