//! Predicted seconds of single calls on a device: a model for each kind of call, corrected by measurements.
//!
//! The model gives how times vary with size: matmuls take waves of tiles, kernels the time of their bytes and
//! FLOPs. Where the description has samples of a kind of call, their ratios to the model correct it, so a
//! measured call takes its measured time. Other kinds take typical ratios.

mod links;
mod matmul;

use std::collections::BTreeMap;

use collective::PEER_SUMS;
use config::Precision;
use device::cuda::STAGED_BLOCK_BYTES;
use device::matmul_table::MatmulKey;
use device::{CallLog, CopyKind, DType, LoggedCall, LoggedCommunication, LoggedKernel, StreamKind, Units};
use matmul::{MatmulModel, MatmulRate};

use crate::call_size::{CallSize, CallSizes};
use crate::imitated::PlanDevice;
use crate::load::{Load, Loaded};
use crate::rates::DeviceRates;
use crate::samples::Samples;

/// Times that calls of one step share.
pub(crate) struct KnownCalls {
    /// Seconds of each distinct matmul. Layers repeat calls, so this avoids recomputing them.
    matmuls: BTreeMap<MatmulKey, f64>,
    /// Seconds of kernels by kind and by the bits of the size.
    kernels: BTreeMap<(String, [u64; 3]), f64>,
    /// Ratios of the times of calls that the step's load slows to the described times.
    ratios: [f64; Loaded::COUNT],
}

/// Predicts the seconds of calls on one device.
pub(crate) struct CallTimes {
    pub(super) rates: DeviceRates,
    pub(super) samples: Samples,
    sizes: CallSizes,
    /// Number of ranks that share the GPU.
    sharing: f64,
    multiprocessors: f64,
    tf32: bool,
    /// Bytes per second at which the host fills pinned memory.
    host_fill: f64,
    load: Option<Load>,
}

/// Typical ratio of measured to modelled time, by prefix of the kernel's kind, for kernels without samples.
/// Taken from steps on an H200 (`benches/notes/training_step.md`, `fp8.md`, `predictions.md`).
const TYPICAL: [(&str, f64); 18] = [
    ("attention.statistics", 1.25),
    ("attention_f32.delta", 1.25),
    ("attention_wide.statistics", 1.25),
    ("attention_hopper_backward", 1.6),
    ("attention_hopper", 2.1),
    ("attention_parts", 1.4),
    ("attention_f32", 2.3),
    ("attention_wide", 2.8),
    ("attention", 3.5),
    ("experts_hopper", 1.8),
    ("experts_linear.router_parts", 4.0),
    ("experts_linear.weight_parts", 5.0),
    ("linear.", 1.9),
    ("embedding", 1.8),
    ("fp8_linear", 1.16),
    ("rms_norm", 1.3),
    ("layer_norm", 1.15),
    ("", 1.06),
];
/// Typical ratio of a matmul's time in a step to the model. A GPU at its power limit is slower than alone.
const TYPICAL_MATMUL: f64 = 1.17;
/// Typical ratio of a convolution's time to the model.
const TYPICAL_CONVOLUTION: f64 = 1.6;
/// Rows and columns of a matmul's tile that occupies a multiprocessor.
const SHARED_TILE: f64 = 128.0;
/// Memory rate of a multiprocessor that works alone, as a multiple of its share of the device's rate.
const ALONE: f64 = 2.0;

/// Speed of compute, as a fraction of its full rate, while gradients are summed over ranks. The sums occupy
/// multiprocessors for which the last blocks of matmuls wait (`benches/notes/several_gpus.md`).
const SPEED_BESIDE_SUMS: f64 = 0.25;
/// Speed of compute, as a fraction of its full rate, during all-gathers, mostly of weights
/// (`benches/notes/predictions.md`).
const SPEED_BESIDE_GATHERS: f64 = 0.5;

/// Bytes of a copy from the host above which its measured times are the host's, which fills pinned memory.
const MOST_DESCRIBED: f64 = 131_072.0;

/// Host time of a collective or message in units of one kernel launch: NCCL groups, checks and launches it.
/// Chosen for seven steps with context parallelism (`benches/notes/predictions.md`).
const COLLECTIVE_LAUNCHES: f64 = 2.5;

/// Seconds that each block of a copy through pinned memory adds on the device
/// (`benches/notes/predictions.md`).
const BLOCK_SECONDS: f64 = 2.3e-6;

/// Smallest fraction of a call's time that remains in a CUDA graph.
const LEAST_OF_GRAPH: f64 = 0.25;

/// Returns the host time of a log's calls, in units of one kernel launch.
#[must_use]
pub fn host_launches(log: &CallLog) -> f64 {
    let mut launches = 0.0;
    log.for_each(|call| launches += launches_of(call));
    launches
}

/// Returns the host time of a step replayed as CUDA graphs, in units of one kernel launch, and the number of
/// graphs.
#[must_use]
pub fn replayed_launches(log: &CallLog) -> (f64, f64) {
    let (mut launches, mut graphs) = (0.0, 0.0);
    log.for_each(|call| {
        launches += if is_made_again(call) { launches_of(call) } else { 0.0 };
        graphs += f64::from(u8::from(begins_graph(call)));
    });
    (launches, graphs)
}

/// Returns whether a replayed step makes this call itself, outside its graphs.
fn is_made_again(call: &LoggedCall) -> bool {
    match call {
        LoggedCall::Copy { kind: CopyKind::FromHost | CopyKind::ToHostLater, .. } => true,
        LoggedCall::Copy { stream, .. } => *stream != StreamKind::Compute,
        LoggedCall::Kernel(kernel) => kernel.stream != StreamKind::Compute,
        LoggedCall::Record(_) | LoggedCall::Wait { .. } | LoggedCall::Communication(_) => true,
        _ => false,
    }
}

/// Returns whether the compute stream executes this call, without waiting for other ranks.
fn is_computed(call: &LoggedCall) -> bool {
    match call {
        LoggedCall::Kernel(kernel) => kernel.stream == StreamKind::Compute,
        LoggedCall::Copy { stream, .. } => *stream == StreamKind::Compute,
        LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. } => true,
        _ => false,
    }
}

/// Returns whether a replayed step launches a graph before this call.
fn begins_graph(call: &LoggedCall) -> bool {
    matches!(call, LoggedCall::Section(_) | LoggedCall::Communication(_))
}

/// Returns the name under which samples of a convolution's host time are stored.
#[must_use]
pub fn host_convolution(dtype: DType) -> String {
    format!("host convolution {dtype}")
}

/// Returns the host time of a call in units of one kernel launch, without the time for copied bytes.
fn launches_of(call: &LoggedCall) -> f64 {
    match call {
        // The library checks more than the driver does.
        LoggedCall::Matmul { .. } => 1.5,
        LoggedCall::Communication(_) => COLLECTIVE_LAUNCHES,
        LoggedCall::Record(_) | LoggedCall::Wait { .. } => 0.25,
        LoggedCall::HostWait(_) | LoggedCall::Synchronize | LoggedCall::Section(_) => 0.0,
        _ => 1.0,
    }
}

impl CallTimes {
    /// Creates the model of a device with `rates`, for `sharing` ranks on each GPU.
    pub(crate) fn new(
        device: &PlanDevice,
        rates: DeviceRates,
        precision: &Precision,
        sharing: usize,
    ) -> Self {
        CallTimes {
            host_fill: rates.host_fill(precision.compute),
            rates,
            samples: Samples::from_measured(&device.times).with_probed(&device.probed),
            sizes: CallSizes::new(device.gpus_per_host(), device.multiprocessors, precision.tf32),
            sharing: sharing.max(1) as f64,
            multiprocessors: f64::from(device.multiprocessors.max(1)),
            tf32: precision.tf32,
            load: device.load,
        }
    }

    /// Returns the times that the calls of a step share.
    pub(crate) fn known(&self, log: &CallLog) -> KnownCalls {
        let mut known =
            KnownCalls { matmuls: BTreeMap::new(), kernels: BTreeMap::new(), ratios: [1.0; Loaded::COUNT] };
        for call in &log.calls {
            match call {
                LoggedCall::Matmul { key, .. } => {
                    known.matmuls.entry(*key).or_insert_with(|| self.call_seconds(call));
                }
                LoggedCall::Kernel(_) => {
                    if let Some(key) = self.kernel_key(call) {
                        known.kernels.entry(key).or_insert_with(|| self.call_seconds(call));
                    }
                }
                _ => {}
            }
        }
        let Some(load) = self.load else { return known };
        let mut flops = 0.0;
        let mut seconds = [0.0; Loaded::COUNT];
        let mut others = 0.0;
        log.for_each_counted(|call, count| {
            let size = self.sizes.size(call);
            let count = count as f64;
            flops += count * size.as_ref().map_or(0.0, CallSize::tensor_core_flops);
            match size.and_then(|size| size.loaded()) {
                Some(calls) => seconds[calls as usize] += count * self.device(call, &known),
                None if is_computed(call) => others += count * self.device(call, &known),
                None => {}
            }
        });
        known.ratios = load.settled(flops, seconds, others);
        known
    }

    fn kernel_key(&self, call: &LoggedCall) -> Option<(String, [u64; 3])> {
        let CallSize { kind, size } = self.sizes.size(call)?;
        Some((kind, size.map(f64::to_bits)))
    }

    /// Returns a call's seconds on the device. `known` is of the step's calls.
    pub(crate) fn device(&self, call: &LoggedCall, known: &KnownCalls) -> f64 {
        let described = match call {
            LoggedCall::Matmul { key, .. } => known.matmuls.get(key).copied(),
            LoggedCall::Kernel(_) => self.kernel_key(call).and_then(|key| known.kernels.get(&key).copied()),
            _ => None,
        };
        let described = described.unwrap_or_else(|| self.call_seconds(call));
        // Typical ratios, for kinds without measurements, include the load.
        if known.ratios == [1.0; Loaded::COUNT] || !self.is_measured(call) {
            return described;
        }
        let size = self.sizes.size(call);
        let calls = size.and_then(|size| size.loaded());
        calls.map_or(described, |calls| described * known.ratios[calls as usize])
    }

    /// Returns whether the description has measurements of this kind of call.
    pub(crate) fn is_measured(&self, call: &LoggedCall) -> bool {
        let size = || self.sizes.size(call);
        !self.samples.is_empty() && size().is_some_and(|size| self.samples.has(&size))
    }

    /// Returns the speed of compute, as a fraction of its full rate, while `call` runs. Only communication
    /// within a host slows compute; networks are too slow to matter.
    pub(crate) fn compute_speed(&self, call: &LoggedCall) -> f64 {
        let LoggedCall::Communication(call) = call else { return 1.0 };
        let reduces = matches!(call.stream, StreamKind::Reduce | StreamKind::Exchange);
        let host = |rank: &usize| rank / self.sizes.gpus_per_host();
        let is_near = call.ranks.iter().all(|rank| Some(host(rank)) == call.ranks.first().map(host));
        match call.operation {
            _ if !reduces || !is_near => 1.0,
            "exchange" | "all-reduce" | "reduce-scatter" | PEER_SUMS => SPEED_BESIDE_SUMS,
            "all-gather" => SPEED_BESIDE_GATHERS,
            _ => 1.0,
        }
    }

    /// Returns a call's seconds on the device in a step replayed as CUDA graphs.
    pub(crate) fn replaying_device(&self, call: &LoggedCall, known: &KnownCalls) -> f64 {
        let seconds = self.device(call, known);
        let gain = if is_made_again(call) { 0.0 } else { self.rates.graph_gain_seconds.unwrap_or(0.0) };
        (seconds - gain).max(LEAST_OF_GRAPH * seconds)
    }

    /// Returns the seconds for which a call occupies the host.
    pub(crate) fn host(&self, call: &LoggedCall) -> f64 {
        let filled = match call {
            LoggedCall::Copy { kind: CopyKind::FromHost, bytes, .. } => *bytes as f64 / self.host_fill,
            _ => 0.0,
        };
        let launch = match call {
            LoggedCall::Convolution { dtype, .. } => self.samples.first(&host_convolution(*dtype)),
            _ => None,
        };
        // Ranks that share a GPU's context launch one after another.
        self.sharing * launch.unwrap_or(self.rates.launch() * launches_of(call)) + filled
    }

    /// Returns the seconds for which a call occupies the host in a step replayed as CUDA graphs.
    pub(crate) fn replaying_host(&self, call: &LoggedCall) -> f64 {
        let own = if is_made_again(call) { self.host(call) } else { 0.0 };
        own + if begins_graph(call) { self.rates.graph() } else { 0.0 }
    }

    /// Returns a call's seconds on the device.
    fn call_seconds(&self, call: &LoggedCall) -> f64 {
        let Some(size) = self.sizes.size(call) else { return 0.0 };
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
                self.corrected(&size, ratio, |size| match kernel.tiling.map(|tiling| tiling.units) {
                    // Experts' weights do not stay in caches.
                    Some(units) if family == "experts_hopper" => {
                        let bytes = self.rates.kernel() + size[1] / self.rates.memory_bytes;
                        self.tiled(size, rate, units).max(bytes)
                    }
                    Some(units) => self.tiled(size, rate, units),
                    None => self.kernel(size, rate),
                })
            }
            LoggedCall::Matmul { key, work } => {
                let model = MatmulModel {
                    rate: self.matmul_rate(key.types, self.tf32),
                    multiprocessors: self.multiprocessors,
                    memory_bytes: self.rates.memory_bytes,
                    kernel_seconds: self.rates.kernel(),
                };
                // Operands and results beyond the three matrices, such as GELU's input.
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
                let model = |[_, bytes, _]: [f64; 3]| self.rates.kernel() + bytes / bytes_per_second;
                match kind {
                    // The clock adds what the device waits for the host.
                    CopyKind::FromHost if size.size[1] > MOST_DESCRIBED => {
                        model(size.size) + BLOCK_SECONDS * (size.size[1] / STAGED_BLOCK_BYTES as f64).ceil()
                    }
                    _ => self.corrected(&size, 1.0, model),
                }
            }
            _ => 0.0,
        };
        seconds * self.shared(call)
    }

    /// Returns the ratio of a call's seconds while other ranks use the GPU to its seconds alone. Calls of
    /// several ranks that leave multiprocessors idle run at the same time.
    fn shared(&self, call: &LoggedCall) -> f64 {
        (self.sharing * self.busy(call)).max(1.0)
    }

    /// Returns the part of a GPU that a call keeps busy. Calls of other ranks find part of the idle time.
    fn busy(&self, call: &LoggedCall) -> f64 {
        let waves = |blocks: f64| blocks / self.multiprocessors;
        let busy = match call {
            LoggedCall::Kernel(LoggedKernel { tiling: Some(tiling), .. }) => {
                let size = self.sizes.size(call).map_or(0.0, |size| size.size[0]);
                match tiling.units {
                    Units::Equal { .. } => waves(size) / (waves(size) + 1.0),
                    Units::Rows(_) => waves(size),
                }
            }
            LoggedCall::Kernel(kernel) => {
                let waves = waves(kernel.grid.iter().map(|blocks| f64::from(*blocks)).product());
                waves / waves.ceil()
            }
            LoggedCall::Matmul { key, .. } => {
                let [m, n, _] = key.sizes.map(|size| size as f64);
                let waves = waves((m / SHARED_TILE).ceil() * (n / SHARED_TILE).ceil());
                waves / waves.ceil()
            }
            _ => 1.0,
        };
        busy.sqrt()
    }

    /// Returns the part of a GPU that the calls of a step keep busy, at least that of one of `ranks` ranks.
    pub(crate) fn busy_part(&self, log: &CallLog, known: &KnownCalls, ranks: usize) -> f64 {
        let mut busy = 0.0;
        let mut all = f64::MIN_POSITIVE;
        log.for_each_counted(|call, count| {
            let seconds = count as f64 * self.device(call, known);
            // Calls of ranks of the same stage already take longer.
            let part = self.sharing * self.busy(call).max(1.0 / ranks as f64) / self.shared(call);
            busy += part * seconds;
            all += seconds;
        });
        busy / all
    }

    /// Returns the model's seconds times the measured ratio of this kind of call, or `typical` without
    /// samples.
    fn corrected(&self, size: &CallSize, typical: f64, model: impl Fn([f64; 3]) -> f64) -> f64 {
        model(size.size) * self.samples.ratio(size, &model).unwrap_or(typical)
    }

    /// Returns the seconds of a kernel with this many blocks, bytes and FLOPs.
    fn kernel(&self, [blocks, bytes, flops]: [f64; 3], flops_rate: f64) -> f64 {
        // A few blocks reach only a fraction of the device's rates.
        let part = (ALONE * blocks / self.multiprocessors).clamp(f64::EPSILON, 1.0);
        self.rates.kernel() + (bytes / self.rates.memory_bytes).max(flops / flops_rate) / part
    }

    /// Returns the seconds of a kernel that reads its operands from caches, by the first number of its size:
    /// equal units of work, or busy multiprocessors.
    fn tiled(&self, [first, _, flops]: [f64; 3], flops_rate: f64, units: Units) -> f64 {
        let waves = first / self.multiprocessors;
        let longer = match units {
            // Multiprocessors wait for the last wave.
            Units::Equal { .. } => waves.ceil() / waves,
            Units::Rows(_) => 1.0 / waves.max(f64::EPSILON),
        };
        self.rates.kernel() + flops / flops_rate * longer
    }

    fn matmul_rate(&self, [a, b, _]: [DType; 3], tf32: bool) -> MatmulRate {
        match (a, b) {
            (a, _) if a.is_fp8() => MatmulRate { large: self.rates.fp8(), is_half: true },
            (DType::F32, DType::F32) if tf32 => MatmulRate { large: self.rates.tf32(), is_half: true },
            (DType::F32, DType::F32) => MatmulRate { large: self.rates.flops_f32, is_half: false },
            _ => MatmulRate { large: self.rates.flops_bf16, is_half: true },
        }
    }

    /// Returns the seconds of a message or collective whose operands have this size.
    fn communication(&self, call: &LoggedCommunication, size: [f64; 3]) -> f64 {
        if self.sharing > 1.0 {
            // Ranks on one GPU copy within its memory.
            return self.rates.kernel() + 2.0 * size[2] / self.rates.memory_bytes;
        }
        links::seconds(&self.rates, call.operation, size)
    }
}
