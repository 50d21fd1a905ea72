//! Measurement of the description of a device.

use std::time::Duration;

use collective::{CollectiveUse, Communicator, DataPlane, threads};
use device::{Category, DType, Description, Device, Request, StreamKind, cuda};
use telemetry::{RankStatistics, Statistic};
use tensor::Tensor;

use crate::call_samples;
use crate::error::{BenchError, Result};
use crate::rates::{Rates, host_copy_bytes_per_second, matmul_flops_per_second, rates};
use config::RunConfig;
use plan::PlanTarget;
use plan::{DeviceRates, MeasuredCalls, Overhead, PlanDevice, Power};
use run::failure;
use worker::placement::{DeviceChoice, Gpus, Placement, describe};
use worker::{Setup, Worker};

/// Configuration of the measured run: a small GPT in bf16, as GPUs train.
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
/// Bytes of the all-reduce that is timed.
const LINK_BYTES: usize = 1 << 30;
const ROUNDS: usize = 5;
/// Most and fewest bytes of the collectives whose times are measured.
const LARGEST: usize = 1 << 28;
const SMALLEST: usize = 1 << 12;

/// Measures the description of a device. On GPUs, which should be otherwise idle, three training steps of a
/// small model run on as many as exist, up to the largest power of two. The GPUs then make all connections
/// that any run may make. The result has the memory that the driver reports as used, and the measured rates.
/// The GPUs then share steps of many models, each on one of them; `progress` gets the number of measured ones
/// and of all.
///
/// # Errors
/// A file, which is already a description; GPUs that are missing or fail.
pub fn describe_device(target: &PlanTarget, progress: &dyn Fn(usize, usize)) -> Result<PlanDevice> {
    match target {
        PlanTarget::File(path) => {
            let text = format!("--describe: {} is already a description", path.display());
            Err(BenchError::Refused(text))
        }
        PlanTarget::Named(name) => {
            let text = format!("--describe: launch/devices/{name}.toml is already a description");
            Err(BenchError::Refused(text))
        }
        PlanTarget::AtHand(DeviceChoice::Cpu | DeviceChoice::Meta) => Ok(PlanDevice::host()),
        PlanTarget::AtHand(choice) => match (cuda::availability(), choice) {
            (Err(_), DeviceChoice::Auto) => Ok(PlanDevice::host()),
            (Err(why), _) => Err(BenchError::Refused(format!("--device cuda: {why}"))),
            (Ok(gpus), _) => measure(gpus.len(), progress),
        },
    }
}

/// The measurements of one rank.
struct Measured {
    statistics: RankStatistics,
    rates: Rates,
    /// FLOP/s of f32 matmuls.
    flops_f32: f64,
    /// Bytes per second of copies from and to the host.
    host_copy: f64,
    /// Bytes per second of the link; `None` for a single rank.
    link: Option<f64>,
    /// Operation between all ranks, bytes of its operand, and seconds.
    collectives: Vec<(&'static str, usize, f64)>,
    /// Power limit of the GPU in watts, if it reports one.
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
    let calls = call_samples::measure(&(0..on_host).map(alone).collect::<Vec<_>>(), progress)?;
    let mut device = described(&description, &all, PlanDevice::shipped()?);
    if let Some(rates) = &mut device.rates {
        rates.launch_seconds = Some(legible(calls.launch_seconds));
        rates.kernel_seconds = Some(legible(calls.kernel_seconds));
    }
    device.gpus_per_host = Some(on_host);
    let limits = all.iter().filter_map(|rank| rank.power_limit);
    device.power = limits.min().map(|watts| Power { limit_watts: watts.into(), step_watts: None });
    device.times = calls.calls;
    device.times.iter_mut().flat_map(|calls| &mut calls.samples).for_each(|[.., seconds]| {
        *seconds = legible(*seconds);
    });
    device.times.extend(slowest_collectives(&all));
    Ok(device)
}

/// Returns the measured operations between ranks of a host, each with the time of the slowest rank.
fn slowest_collectives(all: &[Measured]) -> Vec<MeasuredCalls> {
    let mut measured: Vec<MeasuredCalls> = Vec::new();
    let ranks = all.len() as f64;
    for (index, (operation, bytes, _)) in all.iter().take(1).flat_map(|rank| &rank.collectives).enumerate() {
        let seconds = all.iter().filter_map(|rank| rank.collectives.get(index)).map(|(.., seconds)| *seconds);
        let sample = [1.0, ranks, *bytes as f64, legible(seconds.fold(0.0, f64::max))];
        match measured.iter_mut().find(|calls| calls.call == *operation) {
            Some(calls) => calls.samples.push(sample),
            None => measured.push(MeasuredCalls { call: (*operation).to_owned(), samples: vec![sample] }),
        }
    }
    measured
}

/// Runs the steps on one rank, and returns the driver's memory figures and the rates.
fn measure_rank(setup: &Setup, communicator: Communicator) -> Result<Measured> {
    let mut worker = Worker::new(setup, communicator)?;
    for step in 0..setup.config.train.steps {
        worker.step(step)?;
    }
    let (device, ranks) = (worker.device().clone(), worker.grid().world_size());
    if ranks > 1 {
        // These are all connections that any run makes.
        device.connecting(|| {
            Ok::<_, BenchError>(worker.communicator().data.warm_up(&CollectiveUse::everything(ranks))?)
        })?;
    }
    let statistics = worker.statistics()?;
    let (link, collectives) = match ranks {
        1 => (None, Vec::new()),
        _ => (Some(link(&mut worker)?), collectives(&mut worker)?),
    };
    let (rates, flops_f32) = (rates(&device)?, matmul_flops_per_second(&device, DType::F32)?);
    let host_copy = host_copy_bytes_per_second(&device)?;
    // By now the management library has been opened.
    let power_limit = worker.record()?.figures.gpu.and_then(|gpu| gpu.power_limit_watts);
    Ok(Measured { statistics, rates, flops_f32, host_copy, link, collectives, power_limit })
}

/// Times collectives and an exchange between all ranks with operands of several sizes.
fn collectives(worker: &mut Worker) -> Result<Vec<(&'static str, usize, f64)>> {
    let device: Device = worker.device().clone();
    let (rank, ranks) = (worker.grid().rank(), worker.grid().world_size());
    let request = Request::new(Category::Other, "rates").on(StreamKind::Reduce);
    let [from, to] = [(); 2].map(|()| Tensor::zeros(&device, [LARGEST / 4], DType::F32, request));
    let (from, to) = (from?, to?);
    device.synchronize()?;
    let mut times = Vec::new();
    let sizes =
        std::iter::successors(Some(LARGEST), |bytes| Some(bytes / 8)).take_while(|bytes| *bytes > SMALLEST);
    for bytes in sizes {
        // One part for each rank, of whole elements.
        let part = bytes / ranks / 4 * 4;
        let (whole, own) = (to.region().part(0, part * ranks), to.region().part(rank * part, part));
        let others: Vec<_> = (0..ranks).filter(|other| *other != rank).collect();
        let sends: Vec<_> = others.iter().map(|to| (*to, from.region().part(to * part, part))).collect();
        let receives: Vec<_> = others.iter().map(|by| (*by, to.region().part(by * part, part))).collect();
        let reduce = |plane: &mut dyn DataPlane| plane.all_reduce(whole, DType::F32, StreamKind::Reduce);
        let gather = |plane: &mut dyn DataPlane| plane.all_gather(own, whole, StreamKind::Reduce);
        let exchange = |plane: &mut dyn DataPlane| plane.exchange(&sends, &receives, StreamKind::Reduce);
        let plane = &mut worker.communicator().data;
        times.push(("all-reduce", part * ranks, fastest(plane, reduce)?));
        times.push(("all-gather", part * ranks, fastest(plane, gather)?));
        times.push(("exchange", part * others.len(), fastest(plane, exchange)?));
    }
    Ok(times)
}

/// Returns the seconds of the fastest of several calls between all ranks.
fn fastest(
    plane: &mut dyn DataPlane,
    call: impl Fn(&mut dyn DataPlane) -> collective::Result<()>,
) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        plane.barrier(StreamKind::Reduce)?;
        plane.synchronize(StreamKind::Reduce)?;
        let began = std::time::Instant::now();
        call(plane)?;
        plane.synchronize(StreamKind::Reduce)?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Measures the bus bandwidth of an all-reduce in bytes per second: every rank sends 2 (n − 1) / n of the
/// region.
fn link(worker: &mut Worker) -> Result<f64> {
    let device: Device = worker.device().clone();
    let request = Request::new(Category::Other, "rates").on(StreamKind::Reduce);
    let region = Tensor::zeros(&device, [LINK_BYTES / 4], DType::F32, request)?;
    device.synchronize()?;
    let plane = &mut worker.communicator().data;
    let best = fastest(plane, |plane| plane.all_reduce(region.region(), DType::F32, StreamKind::Reduce))?;
    let ranks = worker.grid().world_size() as f64;
    Ok(2.0 * (ranks - 1.0) / ranks * LINK_BYTES as f64 / best)
}

/// Combines the ranks' measurements: the largest of each part of the overhead, the slowest of each rate, and
/// `others` for figures that were not measured.
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
        let mut names = Vec::new();
        names.extend((!connected).then_some("link_bytes"));
        DeviceRates {
            flops_bf16: slowest(|rank| Some(rank.rates.flops_per_second)).unwrap_or(assumed.flops_bf16),
            flops_f32: slowest(|rank| Some(rank.flops_f32)).unwrap_or(assumed.flops_f32),
            memory_bytes: slowest(|rank| Some(rank.rates.bytes_per_second)).unwrap_or(assumed.memory_bytes),
            host_copy_bytes: slowest(|rank| Some(rank.host_copy)),
            link_bytes: slowest(|rank| rank.link).unwrap_or(assumed.link_bytes),
            assumed: not(&names),
            ..assumed
        }
    });
    let mut device = PlanDevice::of(description, overhead, rates);
    if let (true, Some(version)) = (connected, collective::nccl::version()) {
        device.libraries += &format!(", NCCL {version}");
    }
    device
}

/// Rounds to four digits, more than two measurements agree in.
fn legible(rate: f64) -> f64 {
    if !(rate.is_finite() && rate > 0.0) {
        return rate;
    }
    let unit = 10_f64.powi(rate.abs().log10().floor() as i32 - 3);
    (rate / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::legible;

    #[test]
    fn rates_have_four_digits() {
        for (rate, message) in [(804_658_897_613_337.9, 804.7e12), (4_271.4, 4271.0), (0.0, 0.0)] {
            assert!((legible(rate) - message).abs() <= 1e-9 * message, "{rate}: {}", legible(rate));
        }
        assert!(legible(f64::NAN).is_nan());
    }
}
