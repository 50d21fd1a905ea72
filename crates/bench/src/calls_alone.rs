//! Times matmuls, convolutions and attention of configurations, each call alone, for the description of a
//! device.
//!
//! A step measures few sizes for its length; alone, a GPU times a hundred sizes in a second. Large matmuls
//! before each group of calls keep it at its power limit. Calls then take as long as in steps that are below
//! it, from which times in other steps follow ([`plan::Load`]).

mod attention;
mod convolution;

use std::collections::BTreeMap;

use attention::{AttentionCase, AttentionOperands, attention_cases};
use collective::Axis;
use config::RunConfig;
use convolution::{ConvolutionCase, ConvolutionOperands};
use device::cuda::TimedCall;
use device::matmul_table::{EpilogueKind, MatmulKey, Scaling};
use device::{DType, Device, DeviceOptions, LoggedCall};
use plan::{CallSize, CallSizes, DeviceRanks, MeasuredCalls, PlanDevice, predicted_calls, prepare_shapes};
use worker::is_out_of_memory;
use worker::setup::placement::Placement;

use crate::call_samples::{is_timed, without};
use crate::error::{BenchError, Result};
use crate::matmul::{Noise, Operands};
use crate::options::median;
use crate::random_configs::{RandomRanks, random_configs};
use crate::rates::legible;

/// Smallest part of a step's predicted time for calls of one size that are timed.
const LEAST_SHARE: f64 = 5e-3;
/// Longest predicted seconds of a timed call, and shortest described seconds of one that is timed again.
const LONGEST: f64 = 0.03;
const SHORTEST: f64 = 5e-5;
/// Seconds for which a call is repeated, and the limits of its calls.
const TIMED: f64 = 2.5e-3;
const CALLS: [usize; 2] = [3, 9];
/// Total bytes of the operand sets that calls rotate through. Of small matmuls in a step, too, some operands
/// are in caches.
const OPERAND_BYTES: usize = 48 << 20;
/// Number of times that attention is called.
const ATTENTION_CALLS: usize = 3;
/// Number of matmuls before each group of calls, and their sizes.
const HEATING: usize = 5;
const HEATING_SIZES: [usize; 3] = [8192, 4096, 4096];
/// Seconds that events around a call add to it.
const EVENT: f64 = 2.3e-6;
/// Times the calls of `count` random configurations on the first GPU, which must be of the model that
/// `described` describes. Described calls are not timed again. Calls `progress` with the number of finished
/// configurations.
///
/// # Errors
/// There is no GPU, it is of another model, or it fails.
pub fn random_calls(
    described: &PlanDevice,
    count: usize,
    seed: u64,
    progress: &dyn Fn(usize),
) -> Result<Vec<MeasuredCalls>> {
    let ranks = RandomRanks { ranks: 1, share_gpu: false };
    let mut timed = TimedAlone::new(described, described_calls(described))?;
    for (done, drawn) in random_configs(seed, ranks).take(count).enumerate() {
        progress(done);
        let config = drawn.config()?;
        // Not all random configurations fit, and some are refused, as by layers that FP8 cannot divide.
        if let Ok(calls) = worth_timing(&config, described) {
            timed.add(&config, calls)?;
        }
    }
    Ok(timed.new_calls())
}

/// Times the calls of a configuration on the first GPU, which must be of the model that `described`
/// describes.
///
/// # Errors
/// There is no GPU, it is of another model, or it fails; the configuration cannot be planned.
pub(crate) fn calls_of(described: &PlanDevice, config: &RunConfig) -> Result<Vec<MeasuredCalls>> {
    let mut timed = TimedAlone::new(described, BTreeMap::new())?;
    timed.add(config, worth_timing(config, described)?)?;
    Ok(timed.new_calls())
}

/// Times the attention of a rank of a configuration as [`calls_of`] does.
///
/// # Errors
/// There is no GPU, it is of another model, or it fails.
pub(crate) fn attention_of(described: &PlanDevice, config: &RunConfig) -> Result<Vec<MeasuredCalls>> {
    let mut timed = TimedAlone::new(described, BTreeMap::new())?;
    timed.add(config, Vec::new())?;
    Ok(timed.new_calls())
}

/// Returns the first GPU, which must be of the model that `described` describes.
pub(crate) fn gpu_of(described: &PlanDevice) -> Result<Placement> {
    let gpu = Placement::one_gpu(0)?;
    let model = gpu.description().model;
    if model == described.model {
        return Ok(gpu);
    }
    let text = format!("the GPU is \"{model}\", and the description is of \"{}\"", described.model);
    Err(BenchError::Refused(text))
}

/// Calls that were timed alone on the first GPU.
struct TimedAlone {
    timers: [Timer; 2],
    /// Calls that need not be timed.
    known: BTreeMap<String, Samples>,
    /// Known calls and the calls that were timed.
    times: BTreeMap<String, Samples>,
}

impl TimedAlone {
    fn new(described: &PlanDevice, known: BTreeMap<String, Samples>) -> Result<Self> {
        let gpu = gpu_of(described)?;
        Ok(TimedAlone { timers: timers(&gpu)?, times: known.clone(), known })
    }

    /// Times calls of a configuration, and its attention.
    fn add(&mut self, config: &RunConfig, calls: Vec<LoggedCall>) -> Result<()> {
        let timer = &self.timers[usize::from(config.precision.tf32)];
        for call in calls {
            unless_out_of_memory(timer.call(&call, &mut self.times))?;
        }
        for case in attention_cases(config) {
            unless_out_of_memory(self.timers[0].attention(&case, &mut self.times))?;
        }
        Ok(())
    }

    /// Returns the calls that were timed.
    fn new_calls(self) -> Vec<MeasuredCalls> {
        let new = |(call, samples): (String, Samples)| {
            let known = self.known.get(&call);
            let is_new = |(size, _): &([u64; 3], f64)| !known.is_some_and(|known| known.contains_key(size));
            let samples = samples.into_iter().filter(is_new).map(|(size, seconds)| sample(size, seconds));
            MeasuredCalls { call, samples: samples.collect() }
        };
        self.times.into_iter().map(new).filter(|calls| !calls.samples.is_empty()).collect()
    }
}

/// Times `count` described matmuls again on the first GPU, each call alone.
///
/// # Errors
/// The GPU fails.
pub(crate) fn timed_again(described: &PlanDevice, count: usize) -> Result<Vec<MeasuredCalls>> {
    let timers = timers(&Placement::one_gpu(0)?)?;
    let all: Vec<(MatmulKey, bool)> = described.times.iter().flat_map(described_matmuls).collect();
    let mut times = BTreeMap::new();
    for (key, tf32) in all.iter().step_by(all.len().div_ceil(count.max(1)).max(1)) {
        unless_out_of_memory(timers[usize::from(*tf32)].matmul(*key, &mut times))?;
    }
    let samples =
        |samples: Samples| samples.into_iter().map(|(size, seconds)| sample(size, seconds)).collect();
    Ok(times.into_iter().map(|(call, own)| MeasuredCalls { call, samples: samples(own) }).collect())
}

/// Returns the matmuls of a kind that are long enough to be compared and can be timed, and whether they use
/// TF32. Descriptions do not contain the strides of rows that are not aligned.
fn described_matmuls(calls: &MeasuredCalls) -> Vec<(MatmulKey, bool)> {
    let tf32 = calls.call.ends_with(" tf32");
    let kind = calls.call.strip_prefix("matmul ").map(|kind| kind.strip_suffix(" tf32").unwrap_or(kind));
    let Some(kind) = kind.filter(|kind| !kind.contains(" rows of ")) else { return Vec::new() };
    let lasts = |seconds: f64| (SHORTEST..LONGEST).contains(&seconds);
    let samples = calls.samples.iter().filter(|[.., seconds]| lasts(*seconds));
    let key = |[m, n, k, _]: &[f64; 4]| format!("{m}x{n}x{k} {kind}").parse().ok();
    let is_own = |key: &MatmulKey| kind_of(*key, tf32).is_some_and(|size| size.kind == calls.call);
    samples.filter_map(key).filter(is_own).map(|key| (key, tf32)).collect()
}

/// Returns the kind and size of a matmul.
fn kind_of(key: MatmulKey, tf32: bool) -> Option<CallSize> {
    CallSizes::new(1, 0, tf32).size(&LoggedCall::Matmul { key, work: device::Work::default() })
}

/// Returns what times calls on a GPU without and with TF32.
fn timers(gpu: &Placement) -> Result<[Timer; 2]> {
    let open = |tf32| gpu.device(0, &DeviceOptions { tf32, ..DeviceOptions::default() });
    Ok([Timer::new(open(false)?, false)?, Timer::new(open(true)?, true)?])
}

/// Seconds of calls of one kind by the bits of their sizes, which sort like the sizes.
type Samples = BTreeMap<[u64; 3], f64>;

/// Returns the calls of a description, which need not be timed again.
fn described_calls(device: &PlanDevice) -> BTreeMap<String, Samples> {
    let samples = |calls: &MeasuredCalls| -> Samples {
        calls.samples.iter().map(|[a, b, c, seconds]| ([*a, *b, *c].map(f64::to_bits), *seconds)).collect()
    };
    device.times.iter().map(|calls| (calls.call.clone(), samples(calls))).collect()
}

fn sample(size: [u64; 3], seconds: f64) -> [f64; 4] {
    let [a, b, c] = size.map(f64::from_bits);
    [a, b, c, legible(seconds)]
}

fn unless_out_of_memory(timed: Result<()>) -> Result<()> {
    match timed {
        Err(error) if is_out_of_memory(&error) => Ok(()),
        timed => timed,
    }
}

/// Returns the matmuls and convolutions of a step of the configuration that are worth timing, in all stages
/// of its pipeline.
///
/// # Errors
/// The configuration cannot be planned.
fn worth_timing(config: &RunConfig, device: &PlanDevice) -> Result<Vec<LoggedCall>> {
    let description = device.description(DeviceRanks::from_config(config));
    let setup = prepare_shapes(config.clone(), Placement::Meta(description))?;
    let stages = config.parallel.grid().seen_from(0)?.group(Axis::Pipeline).ranks;
    let mut worth = BTreeMap::new();
    let sizes = CallSizes::new(1, device.multiprocessors, config.precision.tf32);
    for rank in stages {
        let calls = predicted_calls(&setup, device, rank)?;
        let step: f64 = calls.iter().map(|(_, seconds)| seconds).sum();
        let mut by_size: BTreeMap<(String, [u64; 3]), (LoggedCall, [f64; 2])> = BTreeMap::new();
        for (call, seconds) in calls {
            let is_library = matches!(call, LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. });
            let size = sizes.size(&call).filter(|_| is_library);
            let Some(CallSize { kind, size }) = size else { continue };
            let (_, [all, longest]) =
                by_size.entry((kind, size.map(f64::to_bits))).or_insert((call, [0.0; 2]));
            *all += seconds;
            *longest = longest.max(seconds);
        }
        by_size.retain(|_, (_, [all, longest])| *all > LEAST_SHARE * step && *longest < LONGEST);
        worth.extend(by_size.into_iter().map(|(size, (call, _))| (size, call)));
    }
    Ok(worth.into_values().collect())
}

/// A GPU that times calls.
struct Timer {
    device: Device,
    noise: Noise,
    heat: Operands,
    tf32: bool,
}

impl Timer {
    fn new(device: Device, tf32: bool) -> Result<Self> {
        let noise = Noise::new(&device)?;
        let heat = Operands::new(&device, &noise, HEAT)?;
        Ok(Timer { device, noise, heat, tf32 })
    }

    fn sizes(&self) -> CallSizes {
        CallSizes::new(1, self.device.description().multiprocessors, self.tf32)
    }

    /// Begins to time calls. Steps whose calls use no tensor cores do not reach the power limit.
    fn begin(&self, is_limited: bool) -> Result<()> {
        if !is_limited {
            return Ok(self.device.begin_profile_ahead()?);
        }
        // The host is ahead of the device during these matmuls.
        (0..HEATING).try_for_each(|_| self.heat.call(HEAT))?;
        self.device.begin_profile();
        Ok(())
    }

    fn end(&self) -> Result<Vec<f64>> {
        let seconds = |call: &TimedCall| without(EVENT, f64::from(call.milliseconds) / 1e3);
        Ok(self.device.end_profile()?.iter().map(seconds).collect())
    }

    /// Times a matmul or a convolution and adds it to `times`.
    fn call(&self, call: &LoggedCall, times: &mut BTreeMap<String, Samples>) -> Result<()> {
        match call {
            LoggedCall::Matmul { key, .. } => self.matmul(*key, times),
            LoggedCall::Convolution { shape, pass, dtype, .. } => {
                let case = ConvolutionCase { shape: *shape, pass: *pass, dtype: *dtype };
                self.convolution(&case, self.sizes().size(call), times)
            }
            _ => Ok(()),
        }
    }

    /// Times a matmul and adds it to `times`, but for GELU's gradient, which is slower in a step than alone.
    fn matmul(&self, key: MatmulKey, times: &mut BTreeMap<String, Samples>) -> Result<()> {
        if key.epilogue == EpilogueKind::GeluGradient {
            return Ok(());
        }
        let Some(size) = kind_of(key, self.tf32).filter(|size| !has(times, size)) else { return Ok(()) };
        let sets = Operands::sets(&self.device, &self.noise, key, OPERAND_BYTES)?;
        let is_limited = size.tensor_core_flops() > 0.0;
        let seconds = self.repeated(is_limited, |number| sets[number % sets.len()].call(key))?;
        add(times, size, seconds);
        Ok(())
    }

    /// Times a convolution of this size and adds it to `times`.
    fn convolution(
        &self,
        case: &ConvolutionCase,
        size: Option<CallSize>,
        times: &mut BTreeMap<String, Samples>,
    ) -> Result<()> {
        let Some(size) = size.filter(|size| !has(times, size)) else { return Ok(()) };
        let sets = ConvolutionOperands::sets(&self.device, case, OPERAND_BYTES)?;
        // Steps with convolutions do not reach the power limit.
        let seconds = self.repeated(false, |number| sets[number % sets.len()].call(case))?;
        add(times, size, seconds);
        Ok(())
    }

    /// Returns the median seconds of a call, which gets its number.
    fn repeated(&self, is_limited: bool, call: impl Fn(usize) -> Result<()>) -> Result<f64> {
        self.device.begin_profile();
        call(0)?;
        let first = self.end()?.first().copied().unwrap_or_default();
        let calls = ((TIMED / first.max(EVENT)) as usize).clamp(CALLS[0], CALLS[1]);
        self.begin(is_limited)?;
        (0..calls).try_for_each(|number| call(number + 1))?;
        Ok(median(&self.end()?))
    }

    /// Times the forward and backward pass of attention and adds its calls to `times`.
    fn attention(&self, case: &AttentionCase, times: &mut BTreeMap<String, Samples>) -> Result<()> {
        let options = DeviceOptions::default();
        let meta = Device::meta(0, self.device.description().clone(), &options)?;
        let operands = AttentionOperands::new(&meta, case)?;
        meta.begin_log();
        operands.call(case)?;
        let mut sizes = Vec::new();
        let of_calls = self.sizes();
        meta.end_log().for_each(|call| {
            let size = of_calls.size(call).filter(|_| is_timed(call));
            sizes.extend(size);
        });
        if sizes.iter().all(|size| has(times, size)) {
            return Ok(());
        }
        let operands = AttentionOperands::new(&self.device, case)?;
        operands.call(case)?;
        self.begin(sizes.iter().any(|size| size.tensor_core_flops() > 0.0))?;
        (0..ATTENTION_CALLS).try_for_each(|_| operands.call(case))?;
        let seconds = self.end()?;
        for (index, size) in sizes.iter().enumerate() {
            let own: Vec<f64> = seconds.iter().skip(index).step_by(sizes.len()).copied().collect();
            add(times, size.clone(), median(&own));
        }
        Ok(())
    }
}

/// The matmul that heats the GPU.
const HEAT: MatmulKey = MatmulKey {
    sizes: HEATING_SIZES,
    transposed: [false, true],
    types: [DType::Bf16; 3],
    accumulate: false,
    epilogue: EpilogueKind::None,
    alignment: 256,
    scaling: Scaling::None,
    strides: [HEATING_SIZES[2], HEATING_SIZES[2], HEATING_SIZES[1]],
};

fn add(times: &mut BTreeMap<String, Samples>, size: CallSize, seconds: f64) {
    times.entry(size.kind).or_default().insert(size.size.map(f64::to_bits), seconds);
}

fn has(times: &BTreeMap<String, Samples>, size: &CallSize) -> bool {
    times.get(&size.kind).is_some_and(|samples| samples.contains_key(&size.size.map(f64::to_bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn described_matmuls_can_be_timed_again() {
        let h200 = PlanDevice::of_model("NVIDIA H200").unwrap().unwrap();
        let kinds = h200.times.iter().filter(|calls| !described_matmuls(calls).is_empty());
        assert!(kinds.count() > 50);
        let halves = h200.times.iter().find(|calls| calls.call == "matmul nt bf16,bf16,bf16 set plain 256");
        let found = described_matmuls(halves.unwrap());
        assert!(found.len() > 100, "{}", found.len());
        assert!(found.iter().all(|(_, tf32)| !tf32));
        let odd = MeasuredCalls {
            call: "matmul nt bf16,bf16,bf16 set plain 256 rows of 1".to_owned(),
            samples: vec![[8.0, 50257.0, 768.0, 1e-3]],
        };
        assert!(described_matmuls(&odd).is_empty());
    }
}
