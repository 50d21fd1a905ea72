//! Kinds and sizes of calls, with which times are measured and predicted.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use collective::{PEER_COPIES, PEER_SUMS};
use device::{
    ConvolutionPass, CopyKind, DType, LoggedCall, LoggedCommunication, LoggedKernel, TileRows, Units,
};

use crate::busy::busy;

/// Multiples of elements at which the rows of a matmul's operands may begin. Algorithms need the first for
/// full speed.
const ALIGNMENTS: [usize; 4] = [8, 4, 2, 1];

/// Measured communication operations; the first number of their sizes is the number of hosts.
pub(crate) const BETWEEN_RANKS: [&str; 5] = ["all-gather", "all-reduce", "exchange", "send", PEER_SUMS];

/// Suffix of a kernel's name if it draws numbers for dropout.
pub(crate) const DROPOUT: &str = "+dropout";

/// The kind and size of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSize {
    /// Name of the kind, including dtypes and, for kernels, the variant. For gradients of convolutions'
    /// inputs, it ends with the height and width of an output image, on which algorithms depend.
    pub kind: String,
    /// Size. Kernel: blocks, bytes, FLOPs; instead of blocks equal units of work or, for attention, the mean
    /// number of busy multiprocessors. Matmul: m, n, k.
    /// Convolution: output elements, bytes, FLOPs. Copy: bytes. Communication: hosts, ranks per host, bytes.
    pub size: [f64; 3],
}

impl CallSize {
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
}

/// Parts of a multiprocessor that are counted, so that numbers of them are short in descriptions.
const BUSY_PARTS: f64 = 64.0;

/// Returns whether calls of this kind divide their work into rows of attention's tiles.
pub(crate) fn has_rows(kind: &str) -> bool {
    let symbol = kind.strip_prefix("attention").and_then(|rest| rest.split_once('.'));
    symbol.is_some_and(|(_, symbol)| ["forward_", "backward_"].iter().any(|pass| symbol.starts_with(pass)))
}

/// Determines the kinds and sizes of calls on one device.
#[derive(Debug)]
pub struct CallSizes {
    gpus_per_host: usize,
    multiprocessors: u32,
    tf32: bool,
    /// Busy multiprocessors by rows of tiles, which layers repeat.
    busy: Mutex<BTreeMap<TileRows, f64>>,
}

impl CallSizes {
    /// Creates the sizes of calls on hosts of `gpus_per_host` GPUs with this number of multiprocessors.
    /// `tf32` is whether f32 matmuls use TF32.
    #[must_use]
    pub fn new(gpus_per_host: usize, multiprocessors: u32, tf32: bool) -> Self {
        CallSizes { gpus_per_host: gpus_per_host.max(1), multiprocessors, tf32, busy: Mutex::default() }
    }

    /// Returns the number of GPUs of a host.
    pub(crate) fn gpus_per_host(&self) -> usize {
        self.gpus_per_host
    }

    /// Returns the kind and size of a call; `None` for calls that take no time on the device.
    #[must_use]
    pub fn size(&self, call: &LoggedCall) -> Option<CallSize> {
        let tf32 = self.tf32;
        Some(match call {
            LoggedCall::Kernel(kernel) => self.of_kernel(kernel),
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
            LoggedCall::Communication(call) => self.of_communication(call),
            _ => return None,
        })
    }

    fn of_kernel(&self, kernel: &LoggedKernel) -> CallSize {
        let LoggedKernel { function, grid, work, tiling, .. } = kernel;
        let family = function.family().name;
        let symbol = function.symbol();
        let variant = function.variant_index();
        let drops = if tiling.is_some_and(|tiling| tiling.drops) { DROPOUT } else { "" };
        let [units, flops] = match tiling.map(|tiling| tiling.units) {
            Some(Units::Equal { count, flops }) => [count as f64, flops as f64],
            Some(Units::Rows(rows)) => {
                [(BUSY_PARTS * self.busy(rows)).round() / BUSY_PARTS, rows.flops() as f64]
            }
            None => [grid.iter().map(|blocks| f64::from(*blocks)).product(), work.flops as f64],
        };
        CallSize {
            kind: format!("{family}.{symbol}{drops} {variant}"),
            size: [units, work.bytes as f64, flops],
        }
    }

    fn busy(&self, rows: TileRows) -> f64 {
        let mut known = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(rows).or_insert_with(|| busy(&rows, self.multiprocessors))
    }

    fn of_communication(&self, call: &LoggedCommunication) -> CallSize {
        let mut hosts: Vec<_> = call.ranks.iter().map(|rank| rank / self.gpus_per_host).collect();
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
pub(crate) fn of_ranks(operation: &str, hosts: f64) -> String {
    if hosts > 1.0 { format!("{operation} between hosts") } else { operation.to_owned() }
}
