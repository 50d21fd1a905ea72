//! Ending communicators without waiting for ever.

use std::sync::mpsc;
use std::time::{Duration, Instant};
use system::threads;

use super::call_thread::Busy;
use super::raw::{self, Comm};

/// How communicators end.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// Together with all other ranks of the group, which must come to it as well.
    Destroy,
    /// At once: work on the device that waits for a peer ends, and so does the call that is being made.
    Abort(Busy),
}

/// Ends communicators, which nobody uses any more but a call that is being made, on a thread of its own: NCCL
/// may wait there for other ranks. Returns after `patience` at the latest; the thread then goes on by itself.
pub(super) fn end(comms: &[Comm], ending: &Ending, patience: Duration) {
    if comms.is_empty() {
        return;
    }
    let (done, over) = mpsc::channel();
    let (thread_comms, thread_ending) = (comms.to_vec(), ending.clone());
    let started = threads::spawn("nccl-end", move || {
        end_here(&thread_comms, &thread_ending, patience);
        // The receiver may have given up.
        let _ = done.send(());
    });
    match started {
        // Nobody could do more, whether it is over or not.
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
