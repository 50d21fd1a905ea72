//! The only module that calls NCCL's C functions. Calls that may wait for other ranks are for
//! [`CallThread`](super::call_thread::CallThread)'s thread.
#![allow(unsafe_code)] // NCCL's handles, and addresses that its kernels read and write

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use cudarc::nccl::sys;
use device::{Device, StreamKind};

use super::call_thread::Busy;
use super::fault::{Fault, Result};
use super::order::{Order, number};

/// Bytes of the identifier by which the ranks of a communicator meet.
pub(super) const ID_BYTES: usize = 128;
pub(super) type Id = [u8; ID_BYTES];

/// The value of a configuration's integer that NCCL is to choose.
const UNSET: c_int = c_int::MIN;
/// The colour of a rank that is in no group.
const NO_COLOR: c_int = -1;
/// Mark of a configuration.
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// The version that the bindings are of, as NCCL counts.
const BOUND_VERSION: u32 = 22_800;
/// Interval at which ending a communicator looks whether the last call has returned.
const PAUSE: Duration = Duration::from_micros(100);

/// Returns true if NCCL's library can be opened. It stays open.
pub(super) fn is_there() -> bool {
    static THERE: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: opening the library runs its initialisers, which it is made for.
        let there = unsafe { sys::is_culib_present() };
        if there {
            // SAFETY: likewise, and it was found just now.
            unsafe { sys::culib() };
        }
        there
    });
    *THERE
}

/// Version of the library: 10000 · major + 100 · minor + patch. The library must be open.
pub(super) fn version() -> Result<u32> {
    let mut version: c_int = 0;
    // SAFETY: the call writes one integer.
    check(unsafe { sys::ncclGetVersion(&raw mut version) })?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// An identifier by which the ranks of a new communicator meet; this process listens for them from now on.
pub(super) fn unique_id() -> Result<Id> {
    let mut id = sys::ncclUniqueId { internal: [0; ID_BYTES] };
    // SAFETY: the call writes the value that it is given.
    check(unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// A stream, for another thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue(sys::cudaStream_t);

// SAFETY: the driver's stream handles may be used from any thread whose context is current; the caller's
// thread has the device's.
unsafe impl Send for Queue {}

impl Queue {
    /// The stream's handle.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn of(device: &Device, stream: StreamKind) -> device::Result<Self> {
        Ok(Queue(device.stream_handle(stream)?.cast()))
    }
}

/// One rank's end of a group of GPUs. Its calls may wait for the other ranks. Where the environment has
/// communicators that do not block (`NCCL_COMM_BLOCKING=0`), calls only begin, and [`Comm::is_ready`] says
/// when the next may be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comm {
    /// Eight bytes for the rest of the process's life: NCCL writes the handle, from another thread.
    slot: &'static AtomicPtr<sys::ncclComm>,
}

impl Comm {
    /// A communicator that is yet to be made.
    pub(super) fn empty() -> Self {
        Comm { slot: Box::leak(Box::default()) }
    }

    fn handle(&self) -> sys::ncclComm_t {
        self.slot.load(Ordering::Acquire)
    }

    /// Makes the communicator with the other ranks, on the GPU whose context is current.
    ///
    /// # Errors
    /// NCCL's, also where nothing was made.
    pub(super) fn meet(&self, rank: usize, world_size: usize, id: &Id) -> Result<()> {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut config = config();
        let (world_size, rank) = (number(world_size)?, number(rank)?);
        // SAFETY: the slot lives for ever, the configuration until the call has copied it.
        let met =
            unsafe { sys::ncclCommInitRankConfig(self.slot.as_ptr(), world_size, id, rank, &raw mut config) };
        check(met)?;
        if self.is_made() { Ok(()) } else { Err(Fault::internal("no communicator was made")) }
    }

    /// Splits off groups, with all other ranks: those of one colour are together, in the order of their keys.
    /// The group's communicator is `part`; a rank without a colour gets none.
    pub(super) fn split(&self, color_and_key: Option<(usize, usize)>, part: Comm) -> Result<()> {
        let (color, key) = match color_and_key {
            Some((color, key)) => (number(color)?, number(key)?),
            None => (NO_COLOR, 0),
        };
        // SAFETY: the handle is alive, the slot lives for ever, and null means this one's configuration.
        check(unsafe {
            sys::ncclCommSplit(self.handle(), color, key, part.slot.as_ptr(), std::ptr::null_mut())
        })
    }

    /// Returns true if the communicator was made.
    pub(super) fn is_made(&self) -> bool {
        !self.handle().is_null()
    }

    /// Returns true if the host's part of the last call is done.
    ///
    /// # Errors
    /// A failure since, also in work on the device.
    pub(super) fn is_ready(&self) -> Result<bool> {
        let mut state = 0u32;
        // SAFETY: the handle is alive; the state is an integer of the size that is written, with any value.
        check(unsafe { sys::ncclCommGetAsyncError(self.handle(), (&raw mut state).cast()) })?;
        match known(state) {
            sys::ncclResult_t::ncclSuccess => Ok(true),
            sys::ncclResult_t::ncclInProgress => Ok(false),
            code => Err(fault(code)),
        }
    }

    /// Enqueues these as one call, whose parts cannot wait for each other, on a stream of the GPU that the
    /// communicator was made with.
    pub(super) fn enqueue(&self, orders: &[Order], queue: Queue) -> Result<()> {
        match orders {
            [only] => self.enqueue_one(only, queue),
            several => together(|| several.iter().try_for_each(|order| self.enqueue_one(order, queue))),
        }
    }

    fn enqueue_one(&self, order: &Order, Queue(stream): Queue) -> Result<()> {
        use sys::ncclDataType_t::ncclUint8 as BYTES;
        let comm = self.handle();
        let pointer = std::ptr::without_provenance_mut::<c_void>;
        check(match *order {
            // SAFETY: `address` checked that the region lies inside a buffer of a GPU, where it stays:
            // buffers go back to an allocator that gives nothing to the driver while work is under way.
            Order::AllReduce { at, count, kind } => unsafe {
                sys::ncclAllReduce(pointer(at), pointer(at), count, kind, SUM, comm, stream)
            },
            // SAFETY: as above; the caller checked that the input has a part of this length for every rank.
            Order::ReduceScatter { from, to, count, kind } => unsafe {
                sys::ncclReduceScatter(pointer(from), pointer(to), count, kind, SUM, comm, stream)
            },
            // SAFETY: as above, for the output.
            Order::AllGather { from, to, bytes } => unsafe {
                sys::ncclAllGather(pointer(from), pointer(to), bytes, BYTES, comm, stream)
            },
            // SAFETY: as above.
            Order::Broadcast { at, bytes, root } => unsafe {
                sys::ncclBroadcast(pointer(at), pointer(at), bytes, BYTES, root, comm, stream)
            },
            // SAFETY: as above.
            Order::Send { at, bytes, to } => unsafe {
                sys::ncclSend(pointer(at), bytes, BYTES, to, comm, stream)
            },
            // SAFETY: as above.
            Order::Receive { at, bytes, from } => unsafe {
                sys::ncclRecv(pointer(at), bytes, BYTES, from, comm, stream)
            },
        })
    }
}

const SUM: sys::ncclRedOp_t = sys::ncclRedOp_t::ncclSum;

/// Makes what `body` begins one call, whose parts cannot wait for each other.
fn together(body: impl FnOnce() -> Result<()>) -> Result<()> {
    // SAFETY: ended below, whatever happens between.
    check(unsafe { sys::ncclGroupStart() })?;
    let begun = body();
    // SAFETY: begun above, on this thread.
    let ended = check(unsafe { sys::ncclGroupEnd() });
    begun.and(ended)
}

/// Destroys communicators, together with all other ranks of their groups, which must come to it as well.
pub(super) fn destroy(comms: &[Comm]) {
    let each = || {
        for comm in comms.iter().filter(|comm| comm.is_made()) {
            // SAFETY: the handle is alive, and `end` takes it for the last time. Nobody could act on an
            // error.
            let _ = unsafe { sys::ncclCommDestroy(comm.handle()) };
        }
        Ok(())
    };
    let _ = if comms.len() > 1 { together(each) } else { each() };
}

/// Aborts communicators in a group: their work and their calls are told to end at once, and their memory is
/// freed at the group's end, when no call uses them any more. They go together: one that frees memory would
/// otherwise wait for another's work.
pub(super) fn abort(comms: &[Comm], busy: &Busy, until: Instant) {
    // SAFETY: ended below, on this thread, or never where a call still uses what would be freed.
    if check(unsafe { sys::ncclGroupStart() }).is_err() {
        return;
    }
    let mut left = comms.to_vec();
    loop {
        // Asked first: what a call made is there when it is over.
        let over = !busy.is_set();
        left.retain(|comm| {
            let made = comm.is_made();
            if made {
                // SAFETY: the handle is alive, and told so once; what fails in the end has nobody to act on
                // it.
                let _ = unsafe { sys::ncclCommAbort(comm.handle()) };
            }
            !made
        });
        if over {
            break;
        }
        if Instant::now() >= until {
            return;
        }
        std::thread::sleep(PAUSE);
    }
    // SAFETY: begun above.
    let _ = unsafe { sys::ncclGroupEnd() };
}

/// NCCL's own choices, with blocking calls: for each call that does not block, NCCL starts a thread, which
/// takes longer than the call.
fn config() -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: CONFIG_MAGIC,
        version: BOUND_VERSION,
        blocking: 1,
        cgaClusterSize: UNSET,
        minCTAs: UNSET,
        maxCTAs: UNSET,
        netName: std::ptr::null(),
        splitShare: UNSET,
        trafficClass: UNSET,
        commName: std::ptr::null(),
        collnetEnable: UNSET,
        CTAPolicy: UNSET,
        shrinkShare: UNSET,
        nvlsCTAs: UNSET,
        nChannelsPerNetPeer: UNSET,
        nvlinkCentricSched: UNSET,
    }
}

fn check(code: sys::ncclResult_t) -> Result<()> {
    match code {
        sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress => Ok(()),
        code => Err(fault(code)),
    }
}

/// A state as a code; a state that the bindings do not know is an internal error.
fn known(state: u32) -> sys::ncclResult_t {
    use sys::ncclResult_t as Code;
    const CODES: [Code; 8] = [
        Code::ncclSuccess,
        Code::ncclUnhandledCudaError,
        Code::ncclSystemError,
        Code::ncclInternalError,
        Code::ncclInvalidArgument,
        Code::ncclInvalidUsage,
        Code::ncclRemoteError,
        Code::ncclInProgress,
    ];
    CODES.get(state as usize).copied().unwrap_or(Code::ncclInternalError)
}

/// NCCL's text for a code, and for the last error in this process.
fn fault(code: sys::ncclResult_t) -> Fault {
    // SAFETY: the library answers every code with a text of its own.
    let general = text(unsafe { sys::ncclGetErrorString(code) });
    // SAFETY: the communicator may be null, as NCCL documents.
    let last = text(unsafe { sys::ncclGetLastError(std::ptr::null_mut()) });
    let text = if last.is_empty() { general } else { format!("{general}: {last}") };
    Fault { code: code as i64, text }
}

fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: NCCL hands out texts that end with a null and live as long as the library.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().trim().to_owned()
}
