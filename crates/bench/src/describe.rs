//! Measures the description of a device.

use std::time::Duration;

use collective::{Collective, Communicator, ProcessGroup, threads};
use device::{Category, DType, Description, Device, DeviceOptions, Request, StreamKind, cuda};
use telemetry::{RankStatistics, Statistic};
use tensor::Tensor;

use crate::call_samples::{self, CallMeasurements, Extent};
use crate::calls_alone::{random_calls, timed_again};
use crate::error::{BenchError, Result};
use crate::links::{self, Groups};
use crate::rates::{
    Rates, host_copy_bytes_per_second, host_fill_bytes_per_second, legible, matmul_flops_per_second, rates,
};
use config::RunConfig;
use plan::PlanTarget;
use plan::{ClassRatio, DeviceRates, Load, MeasuredCalls, Overhead, PlanDevice, Power};
use run::failure;
use worker::setup::placement::{DeviceChoice, Gpus, Placement, describe};
use worker::{Setup, Worker};

/// Configuration of the measured run: a small GPT in bf16, as trained on GPUs.
const MEASURED: &str = r#"
[model]
layers = 2
heads = 4
width = 256
context = 256
vocabulary = 512
[data]
kind = "synthetic"
[precision]
compute = "bf16"
[train]
steps = 3
micro_batch_size = 8
"#;
/// Number of random configurations whose calls are timed alone.
const CONFIGURATIONS: usize = 500;
/// Number of described matmuls that are timed again to scale a description.
const TIMED_AGAIN: usize = 1000;
/// Bytes of the timed all-reduce.
const LINK_BYTES: usize = 1 << 30;

/// Measures the description of a device. On GPUs, which should be otherwise idle, three training steps of a
/// small model run on the largest power of two of the available GPUs. Then the GPUs make all connections that
/// any run may make. The result contains the memory that the driver reports as used, and the measured rates.
/// Finally the GPUs share the measurement of many models' steps; `progress` gets the numbers of measured and
/// of all steps. With [`Extent::Quick`] a few steps are measured, and the repository's description of such a
/// GPU is scaled to them. Also returns the ratios of the scaling.
///
/// # Errors
/// The target is a file, which already is a description, or GPUs are missing or fail.
pub fn describe_device(
    target: &PlanTarget,
    extent: Extent,
    progress: &dyn Fn(usize, usize),
) -> Result<(PlanDevice, Vec<ClassRatio>)> {
    let unscaled = |device| (device, Vec::new());
    match target {
        PlanTarget::File(path) => {
            let text = format!("--describe: {} is already a description", path.display());
            Err(BenchError::Refused(text))
        }
        PlanTarget::Named(name) => {
            let text = format!("--describe: launch/devices/{name}.toml is already a description");
            Err(BenchError::Refused(text))
        }
        PlanTarget::AtHand(DeviceChoice::Cpu | DeviceChoice::Meta) => Ok(unscaled(PlanDevice::host())),
        PlanTarget::AtHand(choice) => match (cuda::availability(), choice) {
            (Err(_), DeviceChoice::Auto) => Ok(unscaled(PlanDevice::host())),
            (Err(why), _) => Err(BenchError::Refused(format!("--device cuda: {why}"))),
            (Ok(gpus), _) if extent == Extent::Quick => scaled(gpus.len(), progress),
            (Ok(gpus), _) => measure(gpus.len(), progress).map(unscaled),
        },
    }
}

/// Scales the repository's description of this model of GPU to the GPUs of this host.
fn scaled(gpus: usize, progress: &dyn Fn(usize, usize)) -> Result<(PlanDevice, Vec<ClassRatio>)> {
    let description = describe(0)?;
    let Some(shipped) = PlanDevice::of_model(&description.model)?.filter(|device| !device.times.is_empty())
    else {
        let text = format!(
            "--quick scales a description with measured calls, and Plimsoll has none of {}: write --describe \
             without --quick",
            description.model
        );
        return Err(BenchError::Refused(text));
    };
    let alone = |ordinal| Gpus { first_rank: 0, ordinals: vec![ordinal], description: description.clone() };
    let gpus: Vec<_> = (0..gpus).map(alone).collect();
    let calls = call_samples::measure(&gpus, Extent::Quick, shipped.load, progress)?;
    // Steps have too few sizes that are described.
    let mut compared = timed_again(&shipped, TIMED_AGAIN)?;
    compared.extend_from_slice(&calls.calls);
    let gpu = Placement::one_gpu(0)?.device(0, &DeviceOptions::default())?;
    let (mut device, ratios) = shipped.scaled(&compared, host_copy_bytes_per_second(&gpu)?);
    if let Some(rates) = &mut device.rates {
        rates.launch_seconds = Some(legible(calls.launch_seconds));
        rates.graph_seconds = Some(legible(calls.graph_seconds));
        rates.host_fill_bytes = Some(legible(host_fill_bytes_per_second(&gpu)?));
    }
    drop(gpu);
    round_samples(&mut device);
    Ok((device, ratios))
}

/// Sets the measured rates of the host and of CUDA graphs. The times of calls in a description include what
/// graphs save, and belong together with it.
fn set_call_rates(device: &mut PlanDevice, calls: &CallMeasurements) {
    if let Some(rates) = &mut device.rates {
        rates.launch_seconds = Some(legible(calls.launch_seconds));
        rates.kernel_seconds = Some(legible(calls.kernel_seconds));
        rates.graph_seconds = Some(legible(calls.graph_seconds));
        rates.graph_gain_seconds = Some(legible(calls.graph_gain_seconds));
    }
}

fn round_samples(device: &mut PlanDevice) {
    device.times.iter_mut().flat_map(|calls| &mut calls.samples).for_each(|[.., seconds]| {
        *seconds = legible(*seconds);
    });
}

/// Measurements of one rank.
struct Measured {
    statistics: RankStatistics,
    rates: Rates,
    /// FLOP/s of f32 matmuls.
    flops_f32: f64,
    /// Bytes per second of copies between host and device.
    host_copy: f64,
    /// Bytes per second at which the host fills pinned memory.
    host_fill: f64,
    /// Bytes per second of the link to other ranks; `None` for a single rank.
    link: Option<f64>,
    /// Communication operations, with the times of the slowest rank.
    operations: Vec<MeasuredCalls>,
    /// Power limit of the GPU in watts, if reported.
    power_limit: Option<u32>,
}

fn measure(gpus: usize, progress: &dyn Fn(usize, usize)) -> Result<PlanDevice> {
    let description = describe(0)?;
    let connected = gpus > 1 && collective::nccl::is_there();
    let ranks = if connected { 1 << gpus.ilog2() } else { 1 };
    let sets = [
        format!("parallel.data={ranks}"),
        format!("train.global_batch_size={}", 8 * ranks),
        format!("parallel.lanes={ranks}"),
    ];
    let config = RunConfig::parse(MEASURED, "the measurement", std::path::Path::new("/"), &sets)?;
    let gpus = Gpus { first_rank: 0, ordinals: (0..ranks).collect(), description: description.clone() };
    let setup = plan::prepare(config, Placement::Cuda(gpus))?;
    run::prepare_kernels(&setup)?;
    let all = match ranks {
        1 => vec![measure_rank(&setup, Communicator::solo())?],
        _ => {
            let timeout = Duration::from_secs(setup.config.parallel.timeout_seconds);
            let waits = threads::Options { timeout, ..threads::Options::default() };
            let ran = threads::run(ranks, waits, move |communicator| measure_rank(&setup, communicator));
            ran.map_err(|error: threads::RunError<BenchError>| BenchError::Rank {
                rank: error.rank,
                reason: failure::one_line(&error.cause.to_string()),
            })?
        }
    };
    let on_host = cuda::availability().map_or(ranks, |gpus| gpus.len());
    let alone = |ordinal| Gpus { first_rank: 0, ordinals: vec![ordinal], description: description.clone() };
    let gpus: Vec<_> = (0..on_host).map(alone).collect();
    let calls = call_samples::measure(&gpus, Extent::Full, Some(Load::TYPICAL), progress)?;
    let mut device = described(&description, &all, PlanDevice::shipped()?);
    set_call_rates(&mut device, &calls);
    device.gpus_per_host = Some(on_host);
    let limits = all.iter().filter_map(|rank| rank.power_limit);
    let step_watts = calls.step_watts.map(legible);
    device.power = limits.min().map(|watts| Power { limit_watts: watts.into(), step_watts });
    device.load = Some(Load::TYPICAL);
    device.times = calls.calls;
    let alone = random_calls(&device, CONFIGURATIONS, 1, &|_| ())?;
    device = device.with_calls(alone);
    let operations = all.into_iter().next().map(|rank| rank.operations).unwrap_or_default();
    if let Some(rates) = &mut device.rates {
        rates.link_seconds = shortest_message(&operations).or(rates.link_seconds);
    }
    device.times.extend(operations);
    round_samples(&mut device);
    Ok(device)
}

/// Returns the seconds of the shortest measured message; `None` without measurements.
fn shortest_message(operations: &[MeasuredCalls]) -> Option<f64> {
    let messages = operations.iter().filter(|calls| calls.call == "send").flat_map(|calls| &calls.samples);
    messages.map(|[.., seconds]| legible(*seconds)).reduce(f64::min)
}

/// Runs the steps on one rank. Returns the memory that the driver reports and the rates.
fn measure_rank(setup: &Setup, communicator: Communicator) -> Result<Measured> {
    let mut worker = Worker::new(setup, communicator)?;
    for step in 0..setup.config.train.steps {
        worker.step(step)?;
    }
    let device = worker.device().clone();
    let ranks = worker.grid().world_size();
    if ranks > 1 {
        // All connections that any run makes.
        device.connecting(|| {
            Ok::<_, BenchError>(worker.communicator().group.warm_up(&Collective::everything(ranks))?)
        })?;
    }
    let statistics = worker.statistics()?;
    let (link, operations) = match ranks {
        1 => (None, Vec::new()),
        _ => {
            let groups = Groups::of_host(ranks);
            (
                Some(link(&mut worker)?),
                links::measure(worker.communicator(), (&device, links::LARGEST), &groups)?,
            )
        }
    };
    let rates = rates(&device)?;
    let flops_f32 = matmul_flops_per_second(&device, DType::F32)?;
    let host_copy = host_copy_bytes_per_second(&device)?;
    let host_fill = host_fill_bytes_per_second(&device)?;
    // NVML has been opened by now.
    let power_limit = worker.record()?.figures.gpu.and_then(|gpu| gpu.power_limit_watts);
    Ok(Measured { statistics, rates, flops_f32, host_copy, host_fill, link, operations, power_limit })
}

/// Measures the bus bandwidth of an all-reduce in bytes per second: each rank sends 2 (n − 1) / n of the
/// region.
fn link(worker: &mut Worker) -> Result<f64> {
    let device: Device = worker.device().clone();
    let request = Request::new(Category::Other, "rates").on(StreamKind::Reduce);
    let region = Tensor::zeros(&device, [LINK_BYTES / 4], DType::F32, request)?;
    device.synchronize()?;
    let group = &mut worker.communicator().group;
    let reduce = |group: &ProcessGroup| {
        group.run(Collective::AllReduce { region: region.region(), dtype: DType::F32 }, StreamKind::Reduce)
    };
    let best = links::fastest(group, reduce)?;
    let ranks = worker.grid().world_size() as f64;
    Ok(2.0 * (ranks - 1.0) / ranks * LINK_BYTES as f64 / best)
}

/// Combines the ranks' measurements: the largest of each part of the overhead, and the slowest of each rate.
/// `others` has the values that were not measured.
fn described(description: &Description, all: &[Measured], others: PlanDevice) -> PlanDevice {
    let largest = |statistic| all.iter().map(|rank| rank.statistics.get(statistic)).max().unwrap_or(0);
    let slowest =
        |rate: fn(&Measured) -> Option<f64>| all.iter().filter_map(rate).reduce(f64::min).map(legible);
    let connected = all.len() > 1;
    let not = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let overhead = Overhead {
        context: largest(Statistic::ContextBytes),
        modules: largest(Statistic::ModuleBytes),
        warm_up: largest(Statistic::WarmUpBytes),
        communicators: match connected {
            true => largest(Statistic::CommunicatorBytes),
            false => others.overhead.communicators,
        },
        assumed: if connected { Vec::new() } else { not(&["communicators"]) },
    };
    let rates = others.rates.map(|assumed| {
        let names = if connected { &[][..] } else { &["link_bytes", "link_seconds"] };
        DeviceRates {
            flops_bf16: slowest(|rank| Some(rank.rates.flops_per_second)).unwrap_or(assumed.flops_bf16),
            flops_f32: slowest(|rank| Some(rank.flops_f32)).unwrap_or(assumed.flops_f32),
            memory_bytes: slowest(|rank| Some(rank.rates.bytes_per_second)).unwrap_or(assumed.memory_bytes),
            host_copy_bytes: slowest(|rank| Some(rank.host_copy)),
            host_fill_bytes: slowest(|rank| Some(rank.host_fill)),
            link_bytes: slowest(|rank| rank.link).unwrap_or(assumed.link_bytes),
            assumed: not(names),
            ..assumed
        }
    });
    let mut device = PlanDevice::from_description(description, overhead, rates);
    if let (true, Some(version)) = (connected, collective::nccl::version()) {
        device.libraries += &format!(", NCCL {version}");
    }
    device
}
