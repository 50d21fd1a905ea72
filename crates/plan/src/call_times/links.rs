//! Seconds of messages and collectives, from the rates of the links that they use.

use collective::{PEER_COPIES, PEER_SUMS};

use crate::rates::DeviceRates;

/// Bandwidth of peer-to-peer sums, as a fraction of NCCL's all-reduce (`docs/benchmarks.md`).
const PEER_SUMS_SHARE: f64 = 0.93;

/// Returns the seconds of a collective or message of `bytes` operand bytes between ranks on `hosts` hosts,
/// with `on_host` ranks on each.
///
/// A collective sends each part between two hosts once, using the network links of all participating GPUs,
/// and distributes it over the links within each host. Messages use only the sender's own link.
pub(super) fn seconds(rates: &DeviceRates, operation: &str, [hosts, on_host, bytes]: [f64; 3]) -> f64 {
    let ranks = hosts * on_host;
    if ranks <= 1.0 {
        return 0.0;
    }
    let is_far = hosts > 1.0;
    // Messages pass through as many ranks as the tree is deep.
    let latency = rates.message(is_far) * ranks.log2().max(1.0);
    // How often the operand passes through a link.
    let times = match operation {
        "all-reduce" => 2.0,
        "barrier" => 0.0,
        _ => 1.0,
    };
    let moved = match operation {
        "send" | "receive" => {
            let rate = if is_far { rates.network() } else { rates.link_bytes };
            return rates.message(is_far) + bytes / rate;
        }
        "exchange" | PEER_COPIES => {
            // A different part for every other rank, each over the sender's own link.
            let near = bytes * (on_host - 1.0) / (ranks - 1.0) / rates.link_bytes;
            let far = bytes * (ranks - on_host) / (ranks - 1.0) / rates.network();
            return rates.message(is_far) + near.max(far);
        }
        "broadcast" => bytes,
        PEER_SUMS => bytes * (ranks - 1.0) / ranks / PEER_SUMS_SHARE,
        _ => bytes * (ranks - 1.0) / ranks,
    };
    let near = if on_host > 1.0 { moved / rates.link_bytes } else { 0.0 };
    let far = if is_far { bytes * (hosts - 1.0) / hosts / (on_host * rates.network()) } else { 0.0 };
    latency + times * near.max(far)
}
