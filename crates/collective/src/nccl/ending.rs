//! Destroys or aborts communicators without waiting forever.

use std::sync::mpsc;
use std::time::{Duration, Instant};
use system::threads;

use super::call_thread::Busy;
use super::raw::{self, Comm};

/// Way to end a communicator.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// Normally, together with all other ranks of the group.
    Destroy,
    /// At once: ends device work that waits for a peer, and the running call.
    Abort(Busy),
}

/// Ends communicators on a separate thread, because NCCL may wait for other ranks. Returns after `patience`
/// at the latest, and leaves the thread to finish by itself. When this is called, the
/// communicators may be in use only by a call that is still running.
pub(super) fn end(comms: &[Comm], ending: &Ending, patience: Duration) {
    if comms.is_empty() {
        return;
    }
    let (done, over) = mpsc::channel();
    let thread_comms = comms.to_vec();
    let thread_ending = ending.clone();
    let started = threads::spawn("nccl-end", move || {
        end_here(&thread_comms, &thread_ending, patience);
        // The receiver may have given up.
        let _ = done.send(());
    });
    match started {
        // Nothing more can be done, whether or not the thread has finished.
        Ok(_) => drop(over.recv_timeout(patience)),
        Err(_) => end_here(comms, ending, patience),
    }
}

fn end_here(comms: &[Comm], ending: &Ending, patience: Duration) {
    match ending {
        Ending::Destroy => raw::destroy(comms),
        Ending::Abort(busy) => raw::abort(comms, busy, Instant::now() + patience),
    }
}
