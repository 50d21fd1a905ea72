//! Measured times of calls, by kind and size.

mod kriging;
mod related;

use std::collections::BTreeMap;

use collective::{PEER_COPIES, PEER_SUMS};
use device::{ConvolutionPass, CopyKind, DType, LoggedCall, LoggedCommunication, LoggedKernel, Tiling};
use serde::{Deserialize, Serialize};

use crate::load::{Load, Loaded};
use related::{DIFFERENCE_OF_HALVES, RelatedKind};

/// Multiples of elements at which the rows of a matmul's operands may begin. Algorithms need the first for
/// full speed.
const ALIGNMENTS: [usize; 4] = [8, 4, 2, 1];

/// Measured communication operations; the first number of their sizes is the number of hosts.
const BETWEEN_RANKS: [&str; 5] = ["all-gather", "all-reduce", "exchange", "send", PEER_SUMS];

/// Measured calls of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredCalls {
    /// Name of the kind ([`CallSize::kind`]).
    pub call: String,
    /// Samples: three numbers for the size of a call ([`CallSize::size`]), and its seconds.
    pub samples: Vec<[f64; 4]>,
}

/// The kind and size of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSize {
    /// Name of the kind, including dtypes and, for kernels, the variant. For gradients of convolutions'
    /// inputs, it ends with the height and width of an output image, on which algorithms depend.
    pub kind: String,
    /// Size. Kernel: blocks, or all work divided by its longest unit, bytes, FLOPs. Matmul: m, n, k.
    /// Convolution: output elements, bytes, FLOPs. Copy: bytes. Communication: hosts, ranks per host, bytes.
    pub size: [f64; 3],
}

/// Parts of a unit of work that are counted, so that numbers of units are short in descriptions.
const UNIT_PARTS: f64 = 64.0;

impl CallSize {
    /// Returns the seconds that a call takes by a description with this load, if it takes `seconds` in a step
    /// with `flops` FLOP/s on tensor cores.
    #[must_use]
    pub fn at_load(&self, seconds: f64, load: &Load, flops: f64) -> f64 {
        self.loaded().map_or(seconds, |calls| seconds / load.ratio(calls, flops))
    }

    /// Returns how the load of a step slows this call; `None` for copies and communication.
    #[must_use]
    pub fn loaded(&self) -> Option<Loaded> {
        let uses_tensor_cores = self.tensor_core_flops() > 0.0 && !self.is_fp8();
        Some(match self.kind.split_whitespace().take(2).collect::<Vec<_>>()[..] {
            ["matmul", "tn"] if uses_tensor_cores => Loaded::WeightGradient,
            ["matmul", _] if uses_tensor_cores => Loaded::Matmul,
            ["matmul" | "convolution", _] => Loaded::Other,
            [kernel, _] if kernel.starts_with(EXPERTS) => Loaded::Matmul,
            [kernel, _] if kernel.contains('.') && uses_tensor_cores => Loaded::Attention,
            [kernel, _] if kernel.contains('.') => Loaded::Other,
            _ => return None,
        })
    }

    /// Returns the FLOPs of the call on tensor cores, as the load of a step counts them: weighted by the
    /// power that they draw. 0 for calls that do not use tensor cores. Of kernels, only attention in half
    /// types and experts on Hopper are counted.
    #[must_use]
    pub fn tensor_core_flops(&self) -> f64 {
        let [a, b, c] = self.size;
        let is_plain_f32 = || self.kind.contains(" f32,f32,f32 ") && !self.kind.contains(" tf32");
        let is_half_attention = || self.kind.starts_with("attention") && !self.kind.contains("f32");
        match () {
            () if self.kind.starts_with("matmul ") => match () {
                () if is_plain_f32() => 0.0,
                () if self.is_fp8() => FP8_LOAD * 2.0 * a * b * c,
                () => 2.0 * a * b * c,
            },
            () if is_half_attention() => ATTENTION_LOAD * c,
            () if self.kind.starts_with(EXPERTS) => c,
            () => 0.0,
        }
    }

    /// Returns whether the call is a matmul in FP8.
    fn is_fp8(&self) -> bool {
        ["e4m3,", "e5m2,"].iter().any(|operand| self.kind.contains(operand))
    }

    /// Returns the kind and size of a call, on hosts of `gpus_per_host` GPUs; `tf32` is whether f32 matmuls
    /// use TF32. `None` for calls that take no time on the device.
    #[must_use]
    pub fn from_call(call: &LoggedCall, gpus_per_host: usize, tf32: bool) -> Option<Self> {
        Some(match call {
            LoggedCall::Kernel(kernel) => Self::of_kernel(kernel),
            LoggedCall::Matmul { key, .. } => {
                let rounds = if tf32 && key.types[..2] == [DType::F32; 2] { " tf32" } else { "" };
                let kind = format!("matmul {}{rounds}{}", key.kind(), alignment(key.strides));
                CallSize { kind, size: key.sizes.map(|size| size as f64) }
            }
            LoggedCall::Convolution { shape, pass, dtype, work } => {
                let [height, width, _] = shape.output;
                let (pass, image) = match pass {
                    ConvolutionPass::Forward => ("forward", String::new()),
                    ConvolutionPass::BackwardInput => ("backward input", format!(" of {height}x{width}")),
                    ConvolutionPass::BackwardWeight => ("backward weight", String::new()),
                };
                let [_, output, _] = shape.elements();
                let size = [output as f64, work.bytes as f64, work.flops as f64];
                let [rows, columns] = shape.kernel;
                let rounds = if tf32 && *dtype == DType::F32 { " tf32" } else { "" };
                let stride = shape.stride[0];
                let kind = format!("convolution {dtype}{rounds} {pass} {rows}x{columns} {stride}{image}");
                CallSize { kind, size }
            }
            LoggedCall::Copy { kind, bytes, .. } => {
                let kind = match kind {
                    CopyKind::FromHost => "copy from host",
                    CopyKind::ToHost | CopyKind::ToHostLater => "copy to host",
                    CopyKind::FromPool => "copy from pool",
                    CopyKind::ToPool => "copy to pool",
                    CopyKind::Within => "copy",
                    CopyKind::Zero => "zero",
                };
                CallSize { kind: kind.to_owned(), size: [1.0, *bytes as f64, 1.0] }
            }
            LoggedCall::Communication(call) => Self::of_communication(call, gpus_per_host),
            _ => return None,
        })
    }

    /// Returns the call's family: for kernels the family of their source file, else `matmul`, `convolution`
    /// and so on.
    #[must_use]
    pub fn family(call: &LoggedCall) -> Option<&'static str> {
        match call {
            LoggedCall::Kernel(kernel) => Some(kernel.function.family().name),
            LoggedCall::Matmul { .. } => Some("matmul"),
            LoggedCall::Convolution { .. } => Some("convolution"),
            LoggedCall::Copy { .. } => Some("copy"),
            LoggedCall::Communication(call) => Some(call.operation),
            _ => None,
        }
    }

    fn of_kernel(kernel: &LoggedKernel) -> Self {
        let LoggedKernel { function, grid, work, tiling, .. } = kernel;
        let family = function.family().name;
        let symbol = function.symbol();
        let variant = function.variant_index();
        let drops = if tiling.is_some_and(|tiling| tiling.drops) { DROPOUT } else { "" };
        let [units, flops] = match tiling {
            Some(Tiling { flops, longest, .. }) => {
                let units = *flops as f64 / (*longest).max(1) as f64;
                [(UNIT_PARTS * units).round() / UNIT_PARTS, *flops as f64]
            }
            None => [grid.iter().map(|blocks| f64::from(*blocks)).product(), work.flops as f64],
        };
        CallSize {
            kind: format!("{family}.{symbol}{drops} {variant}"),
            size: [units, work.bytes as f64, flops],
        }
    }

    fn of_communication(call: &LoggedCommunication, gpus_per_host: usize) -> Self {
        let mut hosts: Vec<_> = call.ranks.iter().map(|rank| rank / gpus_per_host.max(1)).collect();
        hosts.sort_unstable();
        let ranks = hosts.len();
        hosts.dedup();
        let on_host = ranks as f64 / hosts.len().max(1) as f64;
        let kind = match call.operation {
            // Only exchanges through a library are measured.
            PEER_COPIES => "exchange",
            "receive" => "send",
            operation => operation,
        };
        let size = [hosts.len() as f64, on_host, call.bytes as f64];
        CallSize { kind: of_ranks(kind, hosts.len() as f64), size }
    }
}

/// Returns the suffix of a matmul's kind for rows that are not aligned: the largest power of two that divides
/// the strides of all operands' rows.
fn alignment(strides: [usize; 3]) -> String {
    let is_aligned = |alignment: &usize| strides.iter().all(|stride| stride.is_multiple_of(*alignment));
    match ALIGNMENTS.into_iter().find(is_aligned) {
        Some(alignment) if alignment < ALIGNMENTS[0] => format!(" rows of {alignment}"),
        _ => String::new(),
    }
}

/// Returns the kind of a communication operation on `hosts` hosts. Times within a host do not predict times
/// over a network, so the kinds differ.
fn of_ranks(operation: &str, hosts: f64) -> String {
    if hosts > 1.0 { format!("{operation} between hosts") } else { operation.to_owned() }
}

/// A measured call.
#[derive(Clone, Copy, Debug)]
struct Sample {
    size: [f64; 3],
    seconds: f64,
}

/// Load of a FLOP in FP8, and of one of attention, as a part of a matmul's in half types: the values that fit
/// steps at the power limit best.
const FP8_LOAD: f64 = 0.65;
const ATTENTION_LOAD: f64 = 0.8;

/// Family of the kernels for experts that use tensor cores.
const EXPERTS: &str = "experts_hopper.";

/// Number of nearest samples from which a ratio is estimated.
const NEAREST: usize = 24;

/// Measured calls of all kinds, by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    by_kind: BTreeMap<String, Vec<Sample>>,
    /// Kinds of matmuls and convolutions with samples, by class.
    related: BTreeMap<String, Vec<RelatedKind>>,
    /// Seconds of calls that take these times, by kind and by the bits of the size.
    probed: BTreeMap<String, BTreeMap<[u64; 3], f64>>,
}

impl Samples {
    pub(crate) fn from_measured(measured: &[MeasuredCalls]) -> Self {
        let mut samples = Samples::default();
        for MeasuredCalls { call, samples: measured } in measured {
            if let Some(kind) = RelatedKind::parse(call) {
                samples.related.entry(kind.class.clone()).or_default().push(kind);
            }
            let is_of_ranks = BETWEEN_RANKS.contains(&call.as_str());
            for [a, b, c, seconds] in measured {
                let own = if is_of_ranks { of_ranks(call, *a) } else { call.clone() };
                for kind in any_variant(call).into_iter().map(str::to_owned).chain([own]) {
                    let sample = Sample { size: [*a, *b, *c], seconds: *seconds };
                    samples.by_kind.entry(kind).or_default().push(sample);
                }
            }
        }
        samples
    }

    /// Adds calls of a configuration, which take these times.
    pub(crate) fn with_probed(mut self, probed: &[MeasuredCalls]) -> Self {
        for MeasuredCalls { call, samples } in probed {
            let by_size = samples.iter().map(|[a, b, c, seconds]| ([*a, *b, *c].map(f64::to_bits), *seconds));
            self.probed.insert(call.clone(), by_size.collect());
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.probed.is_empty()
    }

    /// Returns whether calls of this kind were measured.
    pub(crate) fn has(&self, size: &CallSize) -> bool {
        self.by_kind.contains_key(&size.kind) || self.own(size).is_some()
    }

    /// Returns the seconds of a call of exactly this kind and size in a configuration's own step.
    fn own(&self, size: &CallSize) -> Option<f64> {
        self.probed.get(&size.kind)?.get(&size.size.map(f64::to_bits)).copied()
    }

    pub(crate) fn first(&self, kind: &str) -> Option<f64> {
        self.by_kind.get(kind)?.first().map(|sample| sample.seconds)
    }

    /// Returns the ratio of measured to modelled time for this kind and size, from the nearest samples of the
    /// kind and of related kinds, unless the configuration's own call was measured; `None` without samples.
    pub(crate) fn ratio(&self, size: &CallSize, model: impl Fn([f64; 3]) -> f64) -> Option<f64> {
        if let Some(seconds) = self.own(size) {
            return Some(seconds / model(size.size)).filter(|ratio| ratio.is_finite());
        }
        let alike = self.alike(&size.kind);
        let mut near: Vec<Near> = Vec::new();
        for kind in &alike {
            near.extend(kind.samples.iter().map(|sample| Near {
                kind,
                sample,
                squared: squared_distance(size.size, sample.size) + kind.difference,
            }));
        }
        if near.len() > NEAREST {
            near.select_nth_unstable_by(NEAREST, |one, other| one.squared.total_cmp(&other.squared));
            near.truncate(NEAREST);
        }
        near.retain(|near| model(near.sample.size) > 0.0);
        let value = |Near { kind, sample, squared }: &Near| {
            (*squared, (kind.factor * sample.seconds / model(sample.size)).ln())
        };
        let values: Vec<_> = near.iter().map(value).collect();
        let squared = |one: usize, other: usize| {
            let [one, other] = [&near[one], &near[other]];
            squared_distance(one.sample.size, other.sample.size) + one.kind.difference(other.kind)
        };
        kriging::estimate(&values, squared).map(f64::exp)
    }

    /// Returns samples whose measured ratios apply to a kind: for a matmul or convolution, its class; for a
    /// kernel, the kind itself or else related variants (without dropout, another variant, the other half
    /// type).
    fn alike(&self, kind: &str) -> Vec<Alike<'_>> {
        let samples = |kind: &str| self.by_kind.get(kind).map(Vec::as_slice);
        if let Some(own) = RelatedKind::parse(kind) {
            let related = self.related.get(&own.class).into_iter().flatten();
            let alike = related.map(|other| Alike {
                samples: samples(&other.kind).unwrap_or(&[]),
                related: Some(other),
                difference: own.difference(other),
                factor: 1.0,
            });
            return alike.collect();
        }
        let plain = kind.replace(DROPOUT, "");
        let factor = dropout_factor(kind);
        let kinds = [
            (Some(kind), 1.0),
            (Some(&*plain), factor),
            (any_variant(kind), 1.0),
            (any_variant(&plain), factor),
        ];
        let found = kinds.into_iter().find_map(|(kind, factor)| {
            let kind = kind?;
            let kinds = [(Some(kind.to_owned()), 0.0), (other_half(kind), DIFFERENCE_OF_HALVES)];
            let found = kinds.into_iter().filter_map(|(kind, difference)| {
                Some(Alike { samples: samples(&kind?)?, related: None, difference, factor })
            });
            Some(found.collect::<Vec<_>>()).filter(|found| !found.is_empty())
        });
        found.unwrap_or_default()
    }
}

/// Samples of one kind whose measured ratios apply to another kind.
struct Alike<'a> {
    samples: &'a [Sample],
    /// The kind, if it is of matmuls or convolutions.
    related: Option<&'a RelatedKind>,
    /// Added to squared distances between sizes, in doublings, because the kinds differ.
    difference: f64,
    /// Factor of the seconds.
    factor: f64,
}

impl Alike<'_> {
    /// Returns what is added to squared distances to samples of `other`.
    fn difference(&self, other: &Self) -> f64 {
        match (self.related, other.related) {
            (Some(one), Some(other)) => one.difference(other),
            _ => (self.difference - other.difference).abs(),
        }
    }
}

/// A sample near the size of a call.
struct Near<'a> {
    /// The kind of the sample.
    kind: &'a Alike<'a>,
    sample: &'a Sample,
    /// Squared distance to the call, in doublings.
    squared: f64,
}

/// Suffix of a kernel's name if it draws numbers for dropout.
const DROPOUT: &str = "+dropout";

/// Returns the usual ratio of a kernel's time with dropout to that without; 1 for kinds without dropout.
fn dropout_factor(kind: &str) -> f64 {
    match kind {
        kind if !kind.contains(DROPOUT) => 1.0,
        kind if kind.starts_with("attention_f32") => 1.1,
        kind if kind.starts_with("attention_hopper") => 2.0,
        _ => 1.45,
    }
}

/// Returns the kind of the same kernel in the other half type; `None` for other types.
fn other_half(kind: &str) -> Option<String> {
    let pairs = [("_bf16", "_f16"), ("_f16", "_bf16")];
    let (own, other) = pairs.into_iter().find(|(own, _)| kind.contains(own))?;
    Some(kind.replace(own, other))
}

/// Returns the common kind of all variants of a kernel; `None` for other calls.
fn any_variant(kind: &str) -> Option<&str> {
    let (name, variant) = kind.rsplit_once(' ')?;
    (name.contains('.') && variant.parse::<usize>().is_ok()).then_some(name)
}

/// Returns the squared distance between two sizes, in doublings.
fn squared_distance(one: [f64; 3], other: [f64; 3]) -> f64 {
    let doublings = |(one, other): (f64, f64)| (one.max(1.0) / other.max(1.0)).log2();
    one.into_iter().zip(other).map(|pair| doublings(pair).powi(2)).sum()
}

#[cfg(test)]
mod tests;
