//! Non-blocking sends and receives that own their memory. The only module that calls MPI's C functions.
#![allow(unsafe_code)] // MPI's handles, and memory that MPI reads and writes between calls

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

use ::mpi::ffi;
use ::mpi::raw::AsRaw;
use ::mpi::topology::SimpleCommunicator;

use crate::payload::Payload;

/// An error returned by MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: i64,
    pub(crate) text: String,
}

impl Fault {
    /// Formats the error's code and text.
    pub(crate) fn in_words(&self) -> String {
        format!("MPI error {}: {}", self.code, self.text)
    }
}

type Result<T> = std::result::Result<T, Fault>;

/// A duplicated communicator, whose messages match only its own receives. Not `Send`, because it belongs to
/// the thread that initialised MPI.
pub(crate) struct Channel(SimpleCommunicator);

impl Channel {
    /// Takes ownership of a communicator, and makes it return errors; by default MPI ends the process.
    pub(crate) fn new(communicator: SimpleCommunicator) -> Result<Self> {
        // SAFETY: the communicator is live, and the handler is one of MPI's constants.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(communicator.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        check(code).map(|()| Channel(communicator))
    }

    /// The largest allowed tag: at least 32767.
    pub(crate) fn greatest_tag(&self) -> i32 {
        let (mut value, mut flag): (*mut c_int, c_int) = (std::ptr::null_mut(), 0);
        let key = ffi::MPI_TAG_UB as c_int;
        let into = (&raw mut value).cast();
        // SAFETY: for this key MPI writes the address of an integer of its own.
        let code = unsafe { ffi::MPI_Comm_get_attr(self.0.as_raw(), key, into, &raw mut flag) };
        if code != ffi::MPI_SUCCESS as c_int || flag == 0 || value.is_null() {
            return 32767;
        }
        // SAFETY: it was found, and it lives as long as MPI.
        unsafe { *value }
    }

    /// Starts sending all of `payload`.
    pub(crate) fn send(&self, payload: Payload, to: usize, tag: i32) -> Result<Request> {
        self.begin(payload, Direction::Send { to, tag })
    }

    /// Starts receiving at most `payload`'s length, from one rank or, without one, from any.
    pub(crate) fn receive(&self, payload: Payload, from: Option<usize>, tag: i32) -> Result<Request> {
        self.begin(payload, Direction::Receive { from, tag })
    }

    fn begin(&self, mut payload: Payload, direction: Direction) -> Result<Request> {
        // Payloads are at most 256 KiB, and ranks come from MPI, which counts them in this type.
        let count = payload.bytes().len() as c_int;
        let mut raw = null_request();
        // SAFETY: reads a constant that the library sets before it is initialised.
        let byte = unsafe { ffi::RSMPI_UINT8_T };
        let code = match direction {
            Direction::Send { to, tag } => {
                let memory = payload.bytes().as_ptr().cast();
                // SAFETY: `memory` has `count` bytes on the heap, which are neither moved nor written until
                // `Request::test` has seen the end: the request owns them, and its drop leaks them.
                unsafe {
                    ffi::MPI_Isend(memory, count, byte, to as c_int, tag, self.0.as_raw(), &raw mut raw)
                }
            }
            Direction::Receive { from, tag } => {
                // SAFETY: reads a constant of the library.
                let from = from.map_or_else(|| unsafe { ffi::RSMPI_ANY_SOURCE }, |from| from as c_int);
                let memory = payload.bytes_mut().as_mut_ptr().cast();
                // SAFETY: as for the send, and the memory is not read meanwhile either.
                unsafe { ffi::MPI_Irecv(memory, count, byte, from, tag, self.0.as_raw(), &raw mut raw) }
            }
        };
        check(code)?;
        let receives = matches!(direction, Direction::Receive { .. });
        Ok(Request { raw, payload: Some(payload), receives })
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Send { to: usize, tag: i32 },
    Receive { from: Option<usize>, tag: i32 },
}

/// A pending send or receive, with the memory that MPI uses for it.
#[derive(Debug)]
pub(crate) struct Request {
    raw: ffi::MPI_Request,
    /// The memory in use; `None` once the request is done.
    payload: Option<Payload>,
    receives: bool,
}

/// The result of a completed request.
#[derive(Debug)]
pub(crate) struct Completed {
    /// The memory, whose first `bytes` bytes were received.
    pub(crate) payload: Payload,
    pub(crate) bytes: usize,
}

impl Request {
    /// Advances MPI's progress, and returns the memory if this request is done.
    pub(crate) fn test(&mut self) -> Result<Option<Completed>> {
        let mut done: c_int = 0;
        let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
        // SAFETY: `raw` is a live request or the null request, and the other two arguments are local
        // variables.
        check(unsafe { ffi::MPI_Test(&raw mut self.raw, &raw mut done, status.as_mut_ptr()) })?;
        if done == 0 {
            return Ok(None);
        }
        let Some(payload) = self.payload.take() else { return Ok(None) };
        let mut bytes = 0;
        if self.receives {
            // SAFETY: MPI_Test filled the status of a completed receive, whose elements are bytes.
            check(unsafe { ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &raw mut bytes) })?;
        }
        Ok(Some(Completed { payload, bytes: usize::try_from(bytes).unwrap_or(0) }))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(payload) = self.payload.take() else { return };
        // MPI may use the memory for as long as the process lives, so it is leaked.
        std::mem::forget(payload);
        if self.receives {
            // SAFETY: the request is live, because it was never seen to be done. A failed cancellation
            // changes nothing.
            let _ = unsafe { ffi::MPI_Cancel(&raw mut self.raw) };
        }
        // SAFETY: as above.
        let _ = unsafe { ffi::MPI_Request_free(&raw mut self.raw) };
    }
}

fn null_request() -> ffi::MPI_Request {
    // SAFETY: reads a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

fn check(code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut len: c_int = 0;
    // SAFETY: the buffer is as long as MPI requires.
    let status = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut len) };
    let len = if status == ffi::MPI_SUCCESS as c_int { usize::try_from(len).unwrap_or(0) } else { 0 };
    let text = String::from_utf8_lossy(&text[..len.min(text.len())]).into_owned();
    Err(Fault { code: i64::from(code), text })
}
