//! Measured times of calls, by kind and size.

use std::collections::BTreeMap;

use collective::{PEER_COPIES, PEER_SUMS};
use device::{ConvolutionPass, CopyKind, DType, LoggedCall, LoggedCommunication, LoggedKernel};
use serde::{Deserialize, Serialize};

/// Matmuls need dimensions that are multiples of this for their fast algorithms.
const ALIGNMENT: usize = 8;

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
    /// Name of the kind, including dtypes and, for kernels, the variant.
    pub kind: String,
    /// Size. Kernel: blocks, bytes, FLOPs. Matmul: m, n, k. Convolution: output elements, bytes, FLOPs. Copy:
    /// bytes. Communication: hosts, ranks per host, bytes.
    pub size: [f64; 3],
}

impl CallSize {
    /// Returns the kind and size of a call, on hosts of `gpus_per_host` GPUs; `tf32` is whether f32 matmuls
    /// use TF32. `None` for calls that take no time on the device.
    #[must_use]
    pub fn from_call(call: &LoggedCall, gpus_per_host: usize, tf32: bool) -> Option<Self> {
        Some(match call {
            LoggedCall::Kernel(kernel) => Self::of_kernel(kernel),
            LoggedCall::Matmul { key, .. } => {
                // The text of a key begins with its sizes.
                let text = key.to_string();
                let (_, kind) = text.split_once(' ').unwrap_or_default();
                let rounds = if tf32 && key.types[..2] == [DType::F32; 2] { " tf32" } else { "" };
                let odd =
                    if key.sizes.iter().all(|size| size.is_multiple_of(ALIGNMENT)) { "" } else { " odd" };
                let kind = format!("matmul {kind}{rounds}{odd}");
                CallSize { kind, size: key.sizes.map(|size| size as f64) }
            }
            LoggedCall::Convolution { shape, pass, dtype, work } => {
                let pass = match pass {
                    ConvolutionPass::Forward => "forward",
                    ConvolutionPass::BackwardInput => "backward input",
                    ConvolutionPass::BackwardWeight => "backward weight",
                };
                let [_, output, _] = shape.elements();
                let size = [output as f64, work.bytes as f64, work.flops as f64];
                let [rows, columns] = shape.kernel;
                let rounds = if tf32 && *dtype == DType::F32 { " tf32" } else { "" };
                let stride = shape.stride[0];
                let kind = format!("convolution {dtype}{rounds} {pass} {rows}x{columns} {stride}");
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
        let LoggedKernel { function, grid, work, .. } = kernel;
        let family = function.family().name;
        let symbol = function.symbol();
        let variant = function.variant_index();
        let blocks = grid.iter().map(|blocks| f64::from(*blocks)).product();
        CallSize {
            kind: format!("{family}.{symbol} {variant}"),
            size: [blocks, work.bytes as f64, work.flops as f64],
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

/// Returns the kind of a communication operation on `hosts` hosts. Times within a host do not predict times
/// over a network, so the kinds differ.
fn of_ranks(operation: &str, hosts: f64) -> String {
    if hosts > 1.0 { format!("{operation} between hosts") } else { operation.to_owned() }
}

/// Measured calls of all kinds, by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(BTreeMap<String, Vec<([f64; 3], f64)>>);

impl Samples {
    pub(crate) fn from_measured(measured: &[MeasuredCalls]) -> Self {
        let mut all: BTreeMap<String, Vec<([f64; 3], f64)>> = BTreeMap::new();
        for MeasuredCalls { call, samples } in measured {
            let is_of_ranks = BETWEEN_RANKS.contains(&call.as_str());
            for [a, b, c, seconds] in samples {
                let own = if is_of_ranks { of_ranks(call, *a) } else { call.clone() };
                for kind in any_variant(call).into_iter().map(str::to_owned).chain([own]) {
                    all.entry(kind).or_default().push(([*a, *b, *c], *seconds));
                }
            }
        }
        Samples(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether calls of this kind were measured.
    pub(crate) fn has(&self, size: &CallSize) -> bool {
        self.0.contains_key(&size.kind)
    }

    pub(crate) fn first(&self, kind: &str) -> Option<f64> {
        self.0.get(kind)?.first().map(|(_, seconds)| *seconds)
    }

    /// Returns the ratio of measured to modelled time for this kind and size. It is the mean over the kind's
    /// samples, or else over other variants of the kernel, weighted by similarity in size; `None` without
    /// samples.
    pub(crate) fn ratio(
        &self,
        CallSize { kind, size }: &CallSize,
        model: impl Fn([f64; 3]) -> f64,
    ) -> Option<f64> {
        let samples = self.0.get(kind).or_else(|| self.0.get(any_variant(kind)?))?;
        let (mut sum, mut weights) = (0.0, 0.0);
        for (sample, seconds) in samples {
            let modelled = model(*sample);
            if modelled <= 0.0 {
                continue;
            }
            let ratio = seconds / modelled;
            let distance = distance(*size, *sample);
            if distance < 1e-9 {
                return Some(ratio);
            }
            // The fourth power suppresses distant samples between close ones.
            let weight = distance.powi(-4);
            sum += weight * ratio.ln();
            weights += weight;
        }
        (weights > 0.0).then(|| (sum / weights).exp())
    }
}

/// Returns the common kind of all variants of a kernel; `None` for other calls.
fn any_variant(kind: &str) -> Option<&str> {
    let (name, variant) = kind.rsplit_once(' ')?;
    (name.contains('.') && variant.parse::<usize>().is_ok()).then_some(name)
}

/// Returns the distance between two sizes, in doublings.
fn distance(one: [f64; 3], other: [f64; 3]) -> f64 {
    let doublings = |(one, other): (f64, f64)| (one.max(1.0) / other.max(1.0)).log2();
    one.into_iter().zip(other).map(|pair| doublings(pair).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_host_say_nothing_of_a_network() {
        let all_reduce = |hosts, bytes, seconds| [hosts, 4.0, bytes, seconds];
        let measured = |samples: &[[f64; 4]]| {
            Samples::from_measured(&[MeasuredCalls {
                call: "all-reduce".to_owned(),
                samples: samples.into(),
            }])
        };
        let size = |hosts| CallSize { kind: of_ranks("all-reduce", hosts), size: [hosts, 4.0, 1e6] };
        let ratio = |samples: &Samples, hosts| samples.ratio(&size(hosts), |[hosts, _, bytes]| hosts * bytes);
        let near = measured(&[all_reduce(1.0, 1e6, 2e6)]);
        assert_eq!((ratio(&near, 1.0), ratio(&near, 2.0)), (Some(2.0), None));
        let both = measured(&[all_reduce(1.0, 1e6, 2e6), all_reduce(2.0, 1e6, 6e6)]);
        for (hosts, expected) in [(1.0, 2.0), (2.0, 3.0), (8.0, 3.0)] {
            let found = ratio(&both, hosts).unwrap();
            assert!((found - expected).abs() < 1e-9, "{hosts} hosts: {found}");
        }
    }
}
