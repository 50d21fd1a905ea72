//! Seconds of single calls on a device: a model of each kind of call, corrected by measured calls.
//!
//! The model gives how times vary with size: waves of tiles of a matmul, bytes at the memory's rate, FLOPs at
//! the rate of matmuls. Where the description has samples of a kind of call, their ratios to the model
//! correct it, so a call that was measured takes its measured time. Other kinds take typical ratios.

mod links;
mod matmul;

use std::collections::BTreeMap;

use collective::PEER_SUMS;
use device::matmul_table::MatmulKey;
use device::{CallLog, CopyKind, DType, LoggedCall, LoggedCommunication, StreamKind};
use matmul::{MatmulModel, MatmulRate};

use crate::imitated::PlanDevice;
use crate::rates::DeviceRates;
use crate::samples::{CallSize, Samples};

/// Seconds of calls on a device.
pub(crate) struct CallTimes {
    pub(super) rates: DeviceRates,
    pub(super) samples: Samples,
    pub(super) gpus_per_host: usize,
    /// Ranks that share the GPU.
    sharing: f64,
    multiprocessors: f64,
    tf32: bool,
}

/// Ratios of the times of kinds of kernels to the model, by the beginning of a kind, where nothing was
/// measured: about those of GPT-2 and Llama on an H200 (`benches/notes/training_step.md`, `fp8.md`).
const TYPICAL: [(&str, f64); 13] = [
    ("attention.statistics", 1.25),
    ("attention_f32.delta", 1.25),
    ("attention_hopper_forward", 2.7),
    ("attention_hopper_backward", 2.0),
    ("attention_f32", 4.0),
    ("experts_hopper", 1.4),
    ("attention", 4.5),
    ("linear.", 1.9),
    ("embedding", 1.8),
    ("fp8_linear", 1.16),
    ("rms_norm", 1.3),
    ("layer_norm", 1.15),
    ("", 1.06),
];
/// The ratio of the time of a matmul in a step to the model: a GPU at its power limit is slower than for the
/// few matmuls that give its rate.
const TYPICAL_MATMUL: f64 = 1.17;
/// The ratio of a convolution's.
const TYPICAL_CONVOLUTION: f64 = 1.6;
/// Multiples of its share of the memory's rate that one multiprocessor reaches alone.
const ALONE: f64 = 2.0;

/// Speed of compute beside sums over ranks and the exchange of their parts, whose kernels hold
/// multiprocessors for which the last blocks of matmuls wait (`benches/notes/several_gpus.md`).
const SPEED_BESIDE_SUMS: f64 = 0.25;
/// Speed of compute beside values that ranks gather, mostly weights (`benches/notes/predictions.md`).
const SPEED_BESIDE_GATHERS: f64 = 0.5;

/// Least part of a call's time that is left of it in a CUDA graph.
const LEAST_OF_GRAPH: f64 = 0.25;

/// Returns the launches for which a log's calls occupy the host as long.
#[must_use]
pub fn host_launches(log: &CallLog) -> f64 {
    let mut launches = 0.0;
    log.for_each(|call| launches += launches_of(call));
    launches
}

/// Returns the launches for which a log's calls occupy the host as long when the step is replayed as CUDA
/// graphs, and the number of graphs.
#[must_use]
pub fn replayed_launches(log: &CallLog) -> (f64, f64) {
    let (mut launches, mut graphs) = (0.0, 0.0);
    log.for_each(|call| {
        launches += if is_made_again(call) { launches_of(call) } else { 0.0 };
        graphs += f64::from(u8::from(begins_graph(call)));
    });
    (launches, graphs)
}

/// Returns whether a replayed step makes a call itself, between its graphs.
fn is_made_again(call: &LoggedCall) -> bool {
    match call {
        LoggedCall::Copy { kind: CopyKind::FromHost | CopyKind::ToHostLater, .. } => true,
        LoggedCall::Copy { stream, .. } => *stream != StreamKind::Compute,
        LoggedCall::Kernel(kernel) => kernel.stream != StreamKind::Compute,
        LoggedCall::Record(_) | LoggedCall::Wait { .. } | LoggedCall::Communication(_) => true,
        _ => false,
    }
}

/// Returns whether a replayed step launches a graph before a call.
fn begins_graph(call: &LoggedCall) -> bool {
    matches!(call, LoggedCall::Section(_) | LoggedCall::Communication(_))
}

/// Returns the kind of the samples that have the seconds of the host for a convolution of a type.
#[must_use]
pub fn host_convolution(dtype: DType) -> String {
    format!("host convolution {dtype}")
}

/// Launches for which a call occupies the host as long, bytes aside.
fn launches_of(call: &LoggedCall) -> f64 {
    match call {
        // The library checks more than the driver.
        LoggedCall::Matmul { .. } => 1.5,
        LoggedCall::Record(_) | LoggedCall::Wait { .. } => 0.25,
        LoggedCall::HostWait(_) | LoggedCall::Synchronize | LoggedCall::Section(_) => 0.0,
        _ => 1.0,
    }
}

impl CallTimes {
    /// Returns the times of a device with `rates`, for ranks of which `sharing` share a GPU.
    pub(crate) fn new(device: &PlanDevice, rates: DeviceRates, tf32: bool, sharing: usize) -> Self {
        CallTimes {
            rates,
            samples: Samples::of(&device.times),
            gpus_per_host: device.gpus_per_host(),
            sharing: sharing.max(1) as f64,
            multiprocessors: f64::from(device.multiprocessors.max(1)),
            tf32,
        }
    }

    /// Returns the seconds of each matmul of a log: layers repeat theirs.
    pub(crate) fn matmuls(&self, log: &CallLog) -> BTreeMap<MatmulKey, f64> {
        let mut matmuls = BTreeMap::new();
        for call in &log.calls {
            if let LoggedCall::Matmul { key, .. } = call {
                matmuls.entry(*key).or_insert_with(|| self.of(call));
            }
        }
        matmuls
    }

    /// Returns the seconds of a call on the device, if it is a matmul those of `matmuls`.
    pub(crate) fn device(&self, call: &LoggedCall, matmuls: &BTreeMap<MatmulKey, f64>) -> f64 {
        let known = match call {
            LoggedCall::Matmul { key, .. } => matmuls.get(key).copied(),
            _ => None,
        };
        known.unwrap_or_else(|| self.of(call))
    }

    /// Returns whether calls of a call's kind were measured.
    pub(crate) fn is_measured(&self, call: &LoggedCall) -> bool {
        let size = || CallSize::of(call, self.gpus_per_host, self.tf32);
        !self.samples.is_empty() && size().is_some_and(|size| self.samples.has(&size))
    }

    /// Returns the part of its speed that compute has while a call runs, which calls between ranks of a host
    /// lower; networks are slow.
    pub(crate) fn compute_speed(&self, call: &LoggedCall) -> f64 {
        let LoggedCall::Communication(call) = call else { return 1.0 };
        let reduces = matches!(call.stream, StreamKind::Reduce | StreamKind::Exchange);
        let host = |rank: &usize| rank / self.gpus_per_host.max(1);
        let is_near = call.ranks.iter().all(|rank| Some(host(rank)) == call.ranks.first().map(host));
        match call.operation {
            _ if !reduces || !is_near => 1.0,
            "exchange" | "all-reduce" | "reduce-scatter" | PEER_SUMS => SPEED_BESIDE_SUMS,
            "all-gather" => SPEED_BESIDE_GATHERS,
            _ => 1.0,
        }
    }

    /// Seconds of a call on the device in a step that is replayed as CUDA graphs.
    pub(crate) fn replaying_device(&self, call: &LoggedCall, matmuls: &BTreeMap<MatmulKey, f64>) -> f64 {
        let seconds = self.device(call, matmuls);
        let gain = if is_made_again(call) { 0.0 } else { self.rates.graph_gain_seconds.unwrap_or(0.0) };
        (seconds - gain).max(LEAST_OF_GRAPH * seconds)
    }

    /// Seconds for which a call occupies the host.
    pub(crate) fn host(&self, call: &LoggedCall) -> f64 {
        let copied = match call {
            LoggedCall::Copy { kind: CopyKind::FromHost, bytes, .. } => {
                *bytes as f64 / self.rates.host_copy()
            }
            _ => 0.0,
        };
        let launch = match call {
            LoggedCall::Convolution { dtype, .. } => self.samples.first(&host_convolution(*dtype)),
            _ => None,
        };
        // The driver makes the launches of ranks that share a GPU's context one after the other.
        self.sharing * launch.unwrap_or(self.rates.launch() * launches_of(call)) + copied
    }

    /// Seconds for which a call of a step that is replayed as CUDA graphs occupies the host.
    pub(crate) fn replaying_host(&self, call: &LoggedCall) -> f64 {
        let own = if is_made_again(call) { self.host(call) } else { 0.0 };
        own + if begins_graph(call) { self.rates.graph() } else { 0.0 }
    }

    /// Seconds of a call on the device.
    fn of(&self, call: &LoggedCall) -> f64 {
        let Some(size) = CallSize::of(call, self.gpus_per_host, self.tf32) else { return 0.0 };
        if let LoggedCall::Communication(call) = call {
            return self.corrected(&size, 1.0, |size| self.communication(call, size));
        }
        let seconds = match call {
            LoggedCall::Kernel(kernel) => {
                let family = kernel.function.family().name;
                let symbol = kernel.function.symbol();
                let in_halves = family.starts_with("attention") && !symbol.contains("f32");
                let rate = match family == "experts_hopper" {
                    true if kernel.function.is_with("FP8") => self.rates.fp8(),
                    true => self.rates.flops_bf16,
                    false if in_halves => self.rates.flops_bf16,
                    false => self.rates.flops_f32,
                };
                let typical = TYPICAL.iter().find(|(kind, _)| size.kind.starts_with(kind));
                let ratio = typical.map_or(1.0, |(_, ratio)| *ratio);
                // Blocks of attention read their operands from the caches.
                let is_attention = family.starts_with("attention") && kernel.work.flops > 0;
                let cached = |[blocks, _, flops]: [f64; 3]| [blocks, 0.0, flops];
                self.corrected(&size, ratio, |size| {
                    self.kernel(if is_attention { cached(size) } else { size }, rate)
                })
            }
            LoggedCall::Matmul { key, work } => {
                let model = MatmulModel {
                    rate: self.matmul_rate(key.types, self.tf32),
                    multiprocessors: self.multiprocessors,
                    memory_bytes: self.rates.memory_bytes,
                    kernel_seconds: self.rates.kernel(),
                };
                // Operands and results beyond the three arrays, as GELU's input.
                let [m, n, k] = key.sizes.map(|size| size as f64);
                let [a, b, out] = key.types.map(|dtype| dtype.bytes() as f64);
                let arrays = a * m * k + b * k * n + out * m * n;
                let more = work.bytes as f64 / arrays.max(1.0);
                let seconds = |[m, n, k]: [f64; 3]| {
                    model.seconds([m, n, k], more * (a * m * k + b * k * n + out * m * n))
                };
                self.corrected(&size, TYPICAL_MATMUL, seconds)
            }
            LoggedCall::Convolution { dtype, .. } => {
                let rate = self.matmul_rate([*dtype; 3], self.tf32).large;
                self.corrected(&size, TYPICAL_CONVOLUTION, |size| {
                    self.kernel([f64::MAX, size[1], size[2]], rate)
                })
            }
            LoggedCall::Copy { kind, .. } => {
                let bytes_per_second = match kind {
                    CopyKind::Within => self.rates.memory_bytes / 2.0,
                    CopyKind::Zero => self.rates.memory_bytes,
                    _ => self.rates.host_copy(),
                };
                self.corrected(&size, 1.0, |[_, bytes, _]| self.rates.kernel() + bytes / bytes_per_second)
            }
            _ => 0.0,
        };
        seconds * self.sharing
    }

    /// The model's seconds, times the ratio of measured calls of the kind, or else `typical`.
    fn corrected(&self, size: &CallSize, typical: f64, model: impl Fn([f64; 3]) -> f64) -> f64 {
        model(size.size) * self.samples.ratio(size, &model).unwrap_or(typical)
    }

    /// Seconds of a kernel of so many blocks, bytes and FLOPs.
    fn kernel(&self, [blocks, bytes, flops]: [f64; 3], flops_rate: f64) -> f64 {
        // A few blocks reach a part of the device's rates.
        let part = (ALONE * blocks / self.multiprocessors).clamp(f64::EPSILON, 1.0);
        self.rates.kernel() + (bytes / self.rates.memory_bytes).max(flops / flops_rate) / part
    }

    fn matmul_rate(&self, [a, b, _]: [DType; 3], tf32: bool) -> MatmulRate {
        match (a, b) {
            (a, _) if a.is_fp8() => MatmulRate { large: self.rates.fp8(), is_half: true },
            (DType::F32, DType::F32) if tf32 => MatmulRate { large: self.rates.tf32(), is_half: true },
            (DType::F32, DType::F32) => MatmulRate { large: self.rates.flops_f32, is_half: false },
            _ => MatmulRate { large: self.rates.flops_bf16, is_half: true },
        }
    }

    /// Seconds of a message or a collective of another size.
    fn communication(&self, call: &LoggedCommunication, size: [f64; 3]) -> f64 {
        if self.sharing > 1.0 {
            // Ranks on one GPU copy within its memory.
            return self.rates.kernel() + 2.0 * size[2] / self.rates.memory_bytes;
        }
        links::seconds(&self.rates, call.operation, size)
    }
}
