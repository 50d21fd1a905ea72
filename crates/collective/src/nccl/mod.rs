//! The data plane of GPUs over NCCL, where every rank owns a GPU.
//!
//! The one idea: **no call and no wait is NCCL's to end**. Calls are made by a thread beside the rank's
//! (`CallThread`), which asks until they are through: they may connect ranks, and wait for them, whenever
//! NCCL chooses a way that it has not gone before. (NCCL has a mode in which calls return at once; it starts
//! a thread for each of them.) Waits for the device ask a guard ([`device::Device::set_guard`]). Both ask the
//! same three things: has NCCL failed, has a rank failed (the control plane's [`Watch`](crate::Watch)), is it
//! too late. When one is so, all communicators of the rank are aborted, which ends the call that is being
//! made and kernels that wait for peers, and this and every later call returns the error that names the call
//! and, where it is known, the rank.
//!
//! * The library is opened at run time, by the name `libnccl.so` ([`is_there`]).
//! * [`Communicator::over_nccl`](crate::Communicator::over_nccl) connects the ranks: they agree over the
//!   control plane that all have NCCL, in one version, and meet by a number that rank 0 makes.
//! * Sums are in an order of the library's, which may differ with the size, the number of ranks and the
//!   version. Sums in this crate's own order are for the caller to make, from
//!   [`DataPlane::exchange`](crate::DataPlane::exchange).
//! * Calls are enqueued on the stream and return. Calls of one plane take their turns, whatever the streams.
//!   Those of several planes run at once: every group of two or more has a communicator with connections of
//!   its own. NCCL makes those on the host, together with the other ranks, so they are made before the run,
//!   by the warm-up.
//! * Ranks that make different calls, or calls of different sizes, are not told apart: their sums are wrong,
//!   or they wait for each other until the timeout. The host transports, which run the same program, name
//!   them.
//! * Traffic counts the operands' bytes as the host transports do, not what NCCL moves.
//! * NCCL's own buffers are its own, beside the allocator's: it takes most of them when the ranks are
//!   connected and in [`DataPlane::warm_up`](crate::DataPlane::warm_up), and never memory of the caller's.

mod call_thread;
mod connect;
mod ending;
mod fault;
mod order;
mod plane;
mod raw;
mod shared;
mod window;

pub(crate) use connect::{connect, scratch};

/// The library's name in errors.
const NAME: &str = "NCCL";

/// Returns true if NCCL's library can be opened as `libnccl.so`; packages with `libnccl.so.2` alone lack that
/// name.
pub fn is_there() -> bool {
    raw::is_there()
}

/// Version of the library, such as `2.28.9`; `None` where it cannot be opened.
pub fn version() -> Option<String> {
    raw::is_there().then(raw::version)?.ok().map(version_text)
}

fn version_text(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}
