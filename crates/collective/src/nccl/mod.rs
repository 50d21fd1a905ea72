//! The NCCL backend, for ranks with a GPU each.
//!
//! The one idea: **NCCL never decides how long a call or wait takes**. Calls run on a separate thread
//! (`CallThread`), because a call may connect ranks and wait for them whenever NCCL uses a new path. (NCCL's
//! own non-blocking mode starts a thread for each call.) Waits for the device ask a guard
//! ([`device::Device::set_guard`]). Calls and waits check three things: whether NCCL has failed, whether a
//! rank has failed (the control channel's [`Watch`](crate::Watch)), and whether the deadline has passed. In
//! each case all communicators of the rank are aborted, which ends the running call and kernels that wait for
//! peers. This call and every later one return the error, with the call and, if known, the rank.
//!
//! * The library is opened at run time as `libnccl.so` ([`is_there`]).
//! * [`Communicator::over_nccl`](crate::Communicator::over_nccl) connects the ranks. Over the control channel
//!   they check that all have the same version of NCCL, and rank 0 sends the identifier of the communicator.
//! * NCCL chooses the order of sums, which may depend on the size, the number of ranks and the version. A
//!   caller that needs this crate's fixed order builds it from
//!   [`Collective::Exchange`](crate::Collective::Exchange).
//! * Calls return once they are enqueued on the stream. Calls of one group run one after another on any
//!   streams. Calls of several groups run concurrently, because each group of two or more ranks has its own
//!   communicator and connections. NCCL makes connections on the host together with the other ranks, so the
//!   warm-up makes them before the run.
//! * Ranks that make different calls, or calls of different sizes, are not detected: their sums are wrong, or
//!   they wait for each other until the timeout. The host transports run the same program and detect them.
//! * Traffic counts bytes of operands as on the host transports, not the bytes that NCCL moves.
//! * NCCL allocates its own buffers outside the caching allocator, most of them when ranks are connected and
//!   in [`ProcessGroup::warm_up`](crate::ProcessGroup::warm_up). It never uses the caller's memory.

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

/// Returns whether NCCL can be opened as `libnccl.so`. Some packages install only `libnccl.so.2`.
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
