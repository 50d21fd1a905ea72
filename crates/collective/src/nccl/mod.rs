//! The backend of GPUs over NCCL, for ranks with a GPU each.
//!
//! The one idea: **NCCL never decides how long a call or wait takes**. A separate thread (`CallThread`) makes
//! the calls, because a call may connect ranks, and wait for them, whenever NCCL uses a new path. (NCCL has a
//! mode in which calls return at once; it starts a thread for each of them.) Waits for the device ask a guard
//! ([`device::Device::set_guard`]). Both check three things: whether NCCL has failed, whether a rank has
//! failed (the control channel's [`Watch`](crate::Watch)), and whether the deadline has passed. In each case
//! all communicators of the rank are aborted, which ends the running call and kernels that wait for peers.
//! This and every later call then returns the error, which names the call and, if known, the rank.
//!
//! * The library is opened at run time as `libnccl.so` ([`is_there`]).
//! * [`Communicator::over_nccl`](crate::Communicator::over_nccl) connects the ranks: over the control channel
//!   they check that all have the same version of NCCL, and rank 0 sends the identifier of the communicator.
//! * Sums are in the library's order, which may depend on the size, the number of ranks and the version. A
//!   caller that needs this crate's own order builds it from
//!   [`Collective::Exchange`](crate::Collective::Exchange).
//! * Calls are enqueued on the stream and return. Calls of one group run one after another on any streams;
//!   calls of several groups run concurrently: each group of two or more ranks has its own communicator and
//!   connections. NCCL makes connections on the host together with the other ranks, so the warm-up makes them
//!   before the run.
//! * Ranks that make different calls, or calls of different sizes, are not detected: their sums are wrong, or
//!   they wait for each other until the timeout. The host transports, which run the same program, detect
//!   them.
//! * Traffic counts the bytes of operands as the host transports do, not the bytes that NCCL moves.
//! * NCCL allocates its own buffers outside the caching allocator: most when the ranks are connected and in
//!   [`ProcessGroup::warm_up`](crate::ProcessGroup::warm_up). It never uses the caller's memory.

mod backend;
mod call_thread;
mod connect;
mod ending;
mod fault;
mod raw;
mod shared;
mod span;
mod window;

pub(crate) use connect::{connect, scratch};

/// Name of the library in errors.
const NAME: &str = "NCCL";

/// Returns whether NCCL can be opened as `libnccl.so`; packages with only `libnccl.so.2` lack that name.
pub fn is_there() -> bool {
    raw::is_there()
}

/// Version of the library, such as `2.28.9`; `None` if it cannot be opened.
pub fn version() -> Option<String> {
    raw::is_there().then(raw::version)?.ok().map(version_text)
}

fn version_text(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}
