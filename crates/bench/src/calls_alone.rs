//! Times matmuls and attention of random configurations, each call alone, for the description of a device.
//!
//! A step measures few sizes for its length; alone, a GPU times a hundred sizes in a second. Large matmuls
//! before each group of calls keep it at its power limit. It then calls as fast as in a step with a known
//! number of FLOP/s on tensor cores, from which times in other steps follow ([`plan::Load`]).

use std::collections::BTreeMap;

use device::cuda::TimedCall;
use device::matmul_table::{EpilogueKind, MatmulKey, Scaling};
use device::{DType, Device, DeviceOptions, LoggedCall};
use plan::{CallSize, DeviceRanks, Load, MeasuredCalls, PlanDevice, predicted_calls, prepare_shapes};
use tensor::Tensor;
use tensor::ops::attention::{self, Masks, Output, Qkv, Settings};
use tensor::ops::dropout::Mask;
use worker::is_out_of_memory;
use worker::setup::placement::Placement;

use crate::attention::{AttentionCase, AttentionSizes, random};
use crate::call_samples::{is_timed, without};
use crate::error::{BenchError, Result};
use crate::matmul::{Noise, Operands};
use crate::options::median;
use crate::random_configs::{RandomConfig, RandomRanks, random_configs};
use crate::rates::legible;

/// Smallest part of a step's predicted time for matmuls of one size that are timed.
const LEAST_SHARE: f64 = 5e-3;
/// Longest predicted seconds of a timed matmul, and shortest described seconds of one that is timed again.
const LONGEST: f64 = 0.03;
const SHORTEST: f64 = 5e-5;
/// Seconds for which a matmul is called, and the limits of its calls.
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
const EVENT: f64 = 1.1e-6;
/// FLOP/s on tensor cores of steps in which matmuls, and attention, take as long as here. Measured on H200s
/// (`benches/notes/predictions.md`).
const MATMUL_LOAD: f64 = 336e12;
const ATTENTION_LOAD: f64 = 190e12;

/// Times the calls of `count` random configurations on the first GPU, which must be of the model that
/// `described` describes. Described calls are not timed again. Calls `progress` with the number of finished
/// configurations. Seconds hold for steps with the described load.
///
/// # Errors
/// There is no GPU, it is of another model, or it fails.
pub fn bench_calls(
    described: &PlanDevice,
    count: usize,
    seed: u64,
    progress: &dyn Fn(usize),
) -> Result<Vec<MeasuredCalls>> {
    let gpu = Placement::one_gpu(0)?;
    let model = gpu.description().model;
    if model != described.model {
        let text =
            format!("--calls: the GPU is \"{model}\", and the description is of \"{}\"", described.model);
        return Err(BenchError::Refused(text));
    }
    let timers = timers(&gpu, described)?;
    let ranks = RandomRanks { ranks: 1, share_gpu: false };
    let mut times = described_calls(described);
    let before = times.clone();
    for (done, drawn) in random_configs(seed, ranks).take(count).enumerate() {
        progress(done);
        for (key, tf32) in matmuls(&drawn, described)? {
            unless_out_of_memory(timers[usize::from(tf32)].matmul(key, &mut times))?;
        }
        for case in &drawn.attention {
            unless_out_of_memory(timers[0].attention(case, &mut times))?;
        }
    }
    let new = |(call, samples): (String, Samples)| {
        let known = before.get(&call);
        let is_new = |(size, _): &([u64; 3], f64)| !known.is_some_and(|known| known.contains_key(size));
        let samples = samples.into_iter().filter(is_new).map(|(size, seconds)| sample(size, seconds));
        MeasuredCalls { call, samples: samples.collect() }
    };
    Ok(times.into_iter().map(new).filter(|calls| !calls.samples.is_empty()).collect())
}

/// Times `count` described matmuls again on the first GPU, each call alone.
///
/// # Errors
/// The GPU fails.
pub(crate) fn timed_again(described: &PlanDevice, count: usize) -> Result<Vec<MeasuredCalls>> {
    let timers = timers(&Placement::one_gpu(0)?, described)?;
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
    CallSize::from_call(&LoggedCall::Matmul { key, work: device::Work::default() }, 1, tf32)
}

/// Returns what times calls on a GPU without and with TF32.
fn timers(gpu: &Placement, described: &PlanDevice) -> Result<[Timer; 2]> {
    let open = |tf32| gpu.device(0, &DeviceOptions { tf32, ..DeviceOptions::default() });
    let load = described.load.unwrap_or(Load::TYPICAL);
    Ok([Timer::new(open(false)?, false, load)?, Timer::new(open(true)?, true, load)?])
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

/// Returns the matmuls of a step of the configuration that are worth timing, and whether they use TF32; none
/// if the configuration cannot be planned.
fn matmuls(drawn: &RandomConfig, device: &PlanDevice) -> Result<Vec<(MatmulKey, bool)>> {
    let config = drawn.config()?;
    let tf32 = config.precision.tf32;
    let description = device.description(DeviceRanks::from_config(&config));
    // Not all random configurations fit, and some are refused, as by layers that FP8 cannot divide.
    let prepared = prepare_shapes(config, Placement::Meta(description));
    let Ok(calls) = prepared.and_then(|setup| predicted_calls(&setup, device)) else {
        return Ok(Vec::new());
    };
    let step: f64 = calls.iter().map(|(_, seconds)| seconds).sum();
    let mut by_key: BTreeMap<MatmulKey, [f64; 2]> = BTreeMap::new();
    for (call, seconds) in calls {
        if let LoggedCall::Matmul { key, .. } = call {
            let [all, longest] = by_key.entry(key).or_default();
            *all += seconds;
            *longest = longest.max(seconds);
        }
    }
    by_key.retain(|_, [all, longest]| *all > LEAST_SHARE * step && *longest < LONGEST);
    let is_rounded = |key: &MatmulKey| tf32 && key.types[..2] == [DType::F32; 2];
    Ok(by_key.into_keys().map(|key| (key, is_rounded(&key))).collect())
}

/// A GPU that times calls.
struct Timer {
    device: Device,
    noise: Noise,
    heat: Operands,
    tf32: bool,
    load: Load,
}

impl Timer {
    fn new(device: Device, tf32: bool, load: Load) -> Result<Self> {
        let noise = Noise::new(&device)?;
        let heat = Operands::new(&device, &noise, HEAT)?;
        Ok(Timer { device, noise, heat, tf32, load })
    }

    /// Begins to time calls. Steps whose calls use no tensor cores do not reach the power limit.
    fn begin(&self, is_limited: bool) -> Result<()> {
        let count = if is_limited { HEATING } else { 0 };
        (0..count).try_for_each(|_| self.heat.call(HEAT))?;
        self.device.begin_profile();
        Ok(())
    }

    fn end(&self) -> Result<Vec<f64>> {
        let seconds = |call: &TimedCall| without(EVENT, f64::from(call.milliseconds) / 1e3);
        Ok(self.device.end_profile()?.iter().map(seconds).collect())
    }

    /// Adds a call that took `seconds` as in a step with `flops` FLOP/s on tensor cores.
    fn add(&self, times: &mut BTreeMap<String, Samples>, size: CallSize, seconds: f64, flops: f64) {
        let seconds = size.at_load(seconds, &self.load, flops);
        times.entry(size.kind).or_default().insert(size.size.map(f64::to_bits), seconds);
    }

    /// Times a matmul and adds it to `times`.
    fn matmul(&self, key: MatmulKey, times: &mut BTreeMap<String, Samples>) -> Result<()> {
        let Some(size) = kind_of(key, self.tf32) else { return Ok(()) };
        if has(times, &size) {
            return Ok(());
        }
        let sets = Operands::sets(&self.device, &self.noise, key, OPERAND_BYTES)?;
        self.device.begin_profile();
        sets[0].call(key)?;
        let first = self.end()?.first().copied().unwrap_or_default();
        let calls = ((TIMED / first.max(EVENT)) as usize).clamp(CALLS[0], CALLS[1]);
        self.begin(size.tensor_core_flops() > 0.0)?;
        (0..calls).try_for_each(|call| sets[(call + 1) % sets.len()].call(key))?;
        let seconds = median(&self.end()?);
        self.add(times, size, seconds, MATMUL_LOAD);
        Ok(())
    }

    /// Times the forward and backward pass of attention and adds its calls to `times`.
    fn attention(&self, case: &AttentionCase, times: &mut BTreeMap<String, Samples>) -> Result<()> {
        let options = DeviceOptions::default();
        let meta = Device::meta(0, self.device.description().clone(), &options)?;
        let operands = AttentionOperands::new(&meta, case)?;
        meta.begin_log();
        operands.call(case)?;
        let mut sizes = Vec::new();
        meta.end_log().for_each(|call| {
            let size = CallSize::from_call(call, 1, self.tf32).filter(|_| is_timed(call));
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
            self.add(times, size.clone(), median(&own), ATTENTION_LOAD);
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

fn has(times: &BTreeMap<String, Samples>, size: &CallSize) -> bool {
    times.get(&size.kind).is_some_and(|samples| samples.contains_key(&size.size.map(f64::to_bits)))
}

/// Operands of attention. Their values decide no time, but power.
struct AttentionOperands {
    qkv: Qkv<Tensor>,
    dy: Tensor,
}

impl AttentionOperands {
    fn new(device: &Device, case: &AttentionCase) -> Result<Self> {
        let AttentionSizes { batch, positions, heads, .. } = case.sizes;
        let random = |name, columns| random(device, name, [batch, positions, columns], case.dtype);
        let qkv = Qkv::Packed(random("qkv", heads.packed_columns())?);
        Ok(AttentionOperands { qkv, dy: random("dy", heads.output_columns())? })
    }

    /// Calls the forward and the backward pass.
    fn call(&self, case: &AttentionCase) -> Result<()> {
        let AttentionSizes { heads, window, .. } = case.sizes;
        let settings = Settings { window, ..heads.into() };
        let dropout = (case.dropout > 0.0).then(|| Mask::new(1, "attention", 0, case.dropout));
        let masks = Masks { dropout, ..Masks::default() };
        let Output { output, logsumexp } = attention::forward(&self.qkv, settings, masks, false)?;
        attention::backward(&self.dy, &self.qkv, &output, &logsumexp, settings, masks, false)?;
        Ok(())
    }
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
