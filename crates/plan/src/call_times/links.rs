//! Seconds of messages and collectives, by the rates of the links that they cross.

use collective::{PEER_COPIES, PEER_SUMS};

use crate::rates::DeviceRates;

/// The bandwidth of sums in peers' memory as a share of a library's all-reduce (`docs/benchmarks.md`).
const PEER_SUMS_SHARE: f64 = 0.93;

/// Returns the seconds of an operation with operands of `bytes` bytes between ranks on `hosts` hosts,
/// `on_host` on each.
///
/// A library sends the parts of a collective from host to host once, over the network of all GPUs that take
/// part there, and on over the links of each host. A rank sends messages over its own.
pub(super) fn seconds(rates: &DeviceRates, operation: &str, [hosts, on_host, bytes]: [f64; 3]) -> f64 {
    let ranks = hosts * on_host;
    if ranks <= 1.0 {
        return 0.0;
    }
    let is_far = hosts > 1.0;
    // Messages pass through as many ranks as a tree is deep.
    let latency = rates.message(is_far) * ranks.log2().max(1.0);
    // Times that the operand crosses a link.
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
            // Parts for all others, each over this rank's own link.
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
