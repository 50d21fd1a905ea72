//! NCCL's C functions, called only here. Calls that may wait for other ranks run on the thread of
//! [`CallThread`](super::call_thread::CallThread).
#![allow(unsafe_code)] // NCCL's handles, and addresses that its kernels read and write

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use cudarc::nccl::sys;
use device::{Device, StreamKind};

use super::call_thread::Busy;
use super::fault::{Fault, Result};
use super::span::{Span, number};
use crate::collective::Collective;

/// Bytes of the identifier of a new communicator.
pub(super) const ID_BYTES: usize = 128;
pub(super) type Id = [u8; ID_BYTES];

/// Value of an integer option that is left to NCCL.
const UNSET: c_int = c_int::MIN;
/// Colour of a rank that joins no group.
const NO_COLOR: c_int = -1;
/// Magic number of NCCL's configuration struct.
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// NCCL version for which the bindings were generated, in NCCL's numbering.
const BOUND_VERSION: u32 = 22_800;
/// Interval at which aborting checks whether the last call has returned.
const PAUSE: Duration = Duration::from_micros(100);

/// Returns whether NCCL can be opened. The library then stays open.
pub(super) fn is_there() -> bool {
    static THERE: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: opening the library runs its initialisers, which is what they are for.
        let there = unsafe { sys::is_culib_present() };
        if there {
            // SAFETY: as above, and the library was found just now.
            unsafe { sys::culib() };
        }
        there
    });
    *THERE
}

/// Returns the library's version: 10000 · major + 100 · minor + patch. The library must be open.
pub(super) fn version() -> Result<u32> {
    let mut version: c_int = 0;
    // SAFETY: the call writes one integer.
    check(unsafe { sys::ncclGetVersion(&raw mut version) })?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// Creates the identifier of a new communicator. This process then listens for the communicator's ranks.
pub(super) fn unique_id() -> Result<Id> {
    let mut id = sys::ncclUniqueId { internal: [0; ID_BYTES] };
    // SAFETY: the call writes through the pointer.
    check(unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// A stream handle that may be passed to another thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue(sys::cudaStream_t);

// SAFETY: the driver's stream handles may be used from any thread whose context is current; the calling
// thread has made the device's context current.
unsafe impl Send for Queue {}

impl Queue {
    /// Returns the handle of a device's stream.
    pub(super) fn new(device: &Device, stream: StreamKind) -> device::Result<Self> {
        Ok(Queue(device.stream_handle(stream)?.cast()))
    }
}

/// One rank's NCCL communicator. Its calls may wait for the other ranks. With `NCCL_COMM_BLOCKING=0` in the
/// environment, calls only start, and the next is allowed once [`Comm::is_ready`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Comm {
    /// Address of the handle. Lives as long as the process, because NCCL writes it from another thread.
    slot: &'static AtomicPtr<sys::ncclComm>,
}

impl Comm {
    /// Creates an empty communicator, to be filled by [`Comm::meet`] or [`Comm::split`].
    pub(super) fn empty() -> Self {
        Comm { slot: Box::leak(Box::default()) }
    }

    fn handle(&self) -> sys::ncclComm_t {
        self.slot.load(Ordering::Acquire)
    }

    /// Creates the communicator together with the other ranks, on the GPU whose context is current.
    ///
    /// # Errors
    /// NCCL fails, or creates no communicator.
    pub(super) fn meet(&self, rank: usize, world_size: usize, id: &Id) -> Result<()> {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut config = config();
        let world_size = number(world_size)?;
        let rank = number(rank)?;
        // SAFETY: the slot lives as long as the process, the configuration until the call has copied it.
        let met =
            unsafe { sys::ncclCommInitRankConfig(self.slot.as_ptr(), world_size, id, rank, &raw mut config) };
        check(met)?;
        if self.is_made() { Ok(()) } else { Err(Fault::internal("no communicator was made")) }
    }

    /// Splits off groups together with all other ranks. Ranks of one colour form a group in the order of
    /// their keys, whose communicator `part` receives. A rank without a colour gets none.
    pub(super) fn split(&self, color_and_key: Option<(usize, usize)>, part: Comm) -> Result<()> {
        let (color, key) = match color_and_key {
            Some((color, key)) => (number(color)?, number(key)?),
            None => (NO_COLOR, 0),
        };
        // SAFETY: the handle is alive, the slot lives as long as the process, and null means this one's
        // configuration.
        check(unsafe {
            sys::ncclCommSplit(self.handle(), color, key, part.slot.as_ptr(), std::ptr::null_mut())
        })
    }

    /// Returns whether the communicator exists.
    pub(super) fn is_made(&self) -> bool {
        !self.handle().is_null()
    }

    /// Returns whether the host side of the last call is done.
    ///
    /// # Errors
    /// A call or its device work has failed.
    pub(super) fn is_ready(&self) -> Result<bool> {
        let mut state = 0u32;
        // SAFETY: the handle is alive; the state is an integer of the written size, valid with any value.
        check(unsafe { sys::ncclCommGetAsyncError(self.handle(), (&raw mut state).cast()) })?;
        match result_code(state) {
            sys::ncclResult_t::ncclSuccess => Ok(true),
            sys::ncclResult_t::ncclInProgress => Ok(false),
            code => Err(fault(code)),
        }
    }

    /// Enqueues a collective on a stream of the communicator's GPU, as one call whose parts cannot block each
    /// other.
    pub(super) fn enqueue(&self, collective: &Collective<Span>, queue: Queue) -> Result<()> {
        use sys::ncclDataType_t::ncclUint8 as BYTES;
        let (comm, Queue(stream)) = (self.handle(), queue);
        let pointer = |span: Span| std::ptr::without_provenance_mut::<c_void>(span.address);
        check(match *collective {
            // SAFETY: `Span::new` checked that the region lies inside a buffer of a GPU. It stays allocated:
            // freed buffers return to an allocator that returns nothing to the driver while work is running.
            Collective::AllReduce { region, dtype } => unsafe {
                let (count, kind) = region.elements(dtype)?;
                sys::ncclAllReduce(pointer(region), pointer(region), count, kind, SUM, comm, stream)
            },
            // SAFETY: as above; the caller checked that the input has a shard of this length for every rank.
            Collective::ReduceScatter { input, output, dtype } => unsafe {
                let (count, kind) = output.elements(dtype)?;
                sys::ncclReduceScatter(pointer(input), pointer(output), count, kind, SUM, comm, stream)
            },
            // SAFETY: as above, for the output.
            Collective::AllGather { input, output } => unsafe {
                sys::ncclAllGather(pointer(input), pointer(output), input.bytes, BYTES, comm, stream)
            },
            // SAFETY: as above.
            Collective::Broadcast { root, region } => unsafe {
                let at = pointer(region);
                let root = number(root)?;
                sys::ncclBroadcast(at, at, region.bytes, BYTES, root, comm, stream)
            },
            // SAFETY: as above.
            Collective::Send { to, region } => unsafe {
                sys::ncclSend(pointer(region), region.bytes, BYTES, number(to)?, comm, stream)
            },
            // SAFETY: as above.
            Collective::Receive { from, region } => unsafe {
                sys::ncclRecv(pointer(region), region.bytes, BYTES, number(from)?, comm, stream)
            },
            Collective::Exchange { ref sends, ref receives } => {
                return self.exchange(sends, receives, queue);
            }
            Collective::Barrier | Collective::SumShared { .. } | Collective::ExchangeShared { .. } => {
                return Err(Fault::internal("a collective that NCCL does not have"));
            }
        })
    }

    /// Enqueues sends and receives as one call.
    fn exchange(&self, sends: &[(usize, Span)], receives: &[(usize, Span)], queue: Queue) -> Result<()> {
        let each = || {
            let send = |(to, region): &(usize, Span)| Collective::Send { to: *to, region: *region };
            let receive =
                |(from, region): &(usize, Span)| Collective::Receive { from: *from, region: *region };
            let all = sends.iter().map(send).chain(receives.iter().map(receive));
            all.into_iter().try_for_each(|one| self.enqueue(&one, queue))
        };
        if sends.len() + receives.len() > 1 { together(each) } else { each() }
    }
}

const SUM: sys::ncclRedOp_t = sys::ncclRedOp_t::ncclSum;

/// Merges the operations of `body` into one call whose parts cannot block each other.
fn together(body: impl FnOnce() -> Result<()>) -> Result<()> {
    // SAFETY: the group is ended below in any case.
    check(unsafe { sys::ncclGroupStart() })?;
    let begun = body();
    // SAFETY: begun above, on this thread.
    let ended = check(unsafe { sys::ncclGroupEnd() });
    begun.and(ended)
}

/// Destroys communicators. All other ranks of their groups must do the same.
pub(super) fn destroy(comms: &[Comm]) {
    let each = || {
        for comm in comms.iter().filter(|comm| comm.is_made()) {
            // SAFETY: the handle is alive and used for the last time. An error could not be handled.
            let _ = unsafe { sys::ncclCommDestroy(comm.handle()) };
        }
        Ok(())
    };
    let _ = if comms.len() > 1 { together(each) } else { each() };
}

/// Aborts communicators, all in one NCCL group. Their work and calls end at once; their memory is freed once
/// no call uses them. Freeing the memory of a single one could wait for another's work.
pub(super) fn abort(comms: &[Comm], busy: &Busy, until: Instant) {
    // SAFETY: the group is ended below, on this thread, or never if a call still uses the communicators.
    if check(unsafe { sys::ncclGroupStart() }).is_err() {
        return;
    }
    let mut left = comms.to_vec();
    loop {
        // Read first: once the thread is idle, everything created by its call exists.
        let over = !busy.is_set();
        left.retain(|comm| {
            let is_made = comm.is_made();
            if is_made {
                // SAFETY: the handle is alive, and aborted only once; an error could not be handled.
                let _ = unsafe { sys::ncclCommAbort(comm.handle()) };
            }
            !is_made
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

/// Returns NCCL's default configuration with blocking calls. NCCL starts a thread for each non-blocking call,
/// which takes longer than the call.
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

/// Converts a state to a result code; an unknown state is an internal error.
fn result_code(state: u32) -> sys::ncclResult_t {
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

/// Returns the error of a result code, with NCCL's text and its last error in this process.
fn fault(code: sys::ncclResult_t) -> Fault {
    // SAFETY: the library returns a static text for every code.
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
    // SAFETY: NCCL returns null-terminated texts that live as long as the library.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().trim().to_owned()
}
