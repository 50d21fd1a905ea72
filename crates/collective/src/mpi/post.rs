//! Failure and liveness notices between MPI processes.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::mpi::environment::{Universe, library_version};

use crate::mpi::deadline::Deadline;
use crate::mpi::raw::{Channel, Fault, Request};
use crate::payload::PayloadPool;
use crate::processes::{NOTICE_BYTES, Notice, Post, Processes, Transport};
use system::fail_point;

/// Number of polls without progress before a wait sleeps, if every rank of the host has its own processor.
const SPINS: u32 = 4000;
const YIELDS: u32 = 2000;
/// Durations of sleeps in a wait: short ones first, then longer ones.
const SLEEPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
const SHORT_SLEEPS: u32 = 200;

/// The initialised MPI library and its communicators. The communicators are dropped before MPI is finalized.
pub(super) struct Library {
    /// Communicator for the messages of collectives and transfers.
    pub(super) traffic: Channel,
    /// Communicator for notices.
    pub(super) notices: Channel,
    /// Finalizes MPI when it is dropped.
    pub(super) _universe: Universe,
}

/// Sends and receives notices on a communicator of their own.
pub(super) struct MpiPost {
    library: Rc<Library>,
    incoming: RefCell<Option<Request>>,
    outgoing: RefCell<Vec<Request>>,
    /// Number of polls before sleeping: [`SPINS`], or 0 if ranks share processors.
    spins: u32,
}

impl MpiPost {
    pub(super) fn new(library: Rc<Library>, crowded: bool) -> Self {
        let spins = if crowded { 0 } else { SPINS };
        MpiPost { library, incoming: RefCell::default(), outgoing: RefCell::default(), spins }
    }

    fn next(&self) -> Result<Option<Notice>, Fault> {
        loop {
            let mut incoming = self.incoming.borrow_mut();
            let request = match incoming.as_mut() {
                Some(request) => request,
                None => {
                    let payload = PayloadPool::default().take(NOTICE_BYTES);
                    incoming.insert(self.library.notices.receive(payload, None, 0)?)
                }
            };
            let Some(completed) = request.test()? else { return Ok(None) };
            *incoming = None;
            // A message that does not decode was not sent by this program; it is ignored.
            if let Some(notice) = Notice::decode(&completed.payload.bytes()[..completed.bytes]) {
                return Ok(Some(notice));
            }
        }
    }
}

impl Post for MpiPost {
    fn transport(&self) -> Transport {
        let text = library_version().unwrap_or_default();
        let library = text.split([',', '\n']).next().unwrap_or_default().trim_end_matches('\0').to_owned();
        Transport::Mpi { library }
    }

    fn receive(&self) -> Result<Option<Notice>, String> {
        self.is_sent();
        self.next().map_err(|fault| fault.in_words())
    }

    fn send(&self, to: usize, notice: &Notice) {
        let bytes = notice.encode();
        let mut payload = PayloadPool::default().take(bytes.len());
        payload.bytes_mut().copy_from_slice(&bytes);
        if let Ok(request) = self.library.notices.send(payload, to, 0) {
            self.outgoing.borrow_mut().push(request);
        }
    }

    fn is_sent(&self) -> bool {
        let mut outgoing = self.outgoing.borrow_mut();
        // An undeliverable notice has no receiver left.
        outgoing.retain_mut(|request| matches!(request.test(), Ok(None)));
        outgoing.is_empty()
    }

    fn idle(&self, idle_rounds: u32, deadline: Instant) {
        match idle_rounds.checked_sub(self.spins) {
            None => std::hint::spin_loop(),
            Some(..YIELDS) => std::thread::yield_now(),
            Some(idle_rounds) => {
                let sleep = SLEEPS[usize::from(idle_rounds > YIELDS + SHORT_SLEEPS)];
                std::thread::sleep(sleep.min(deadline.saturating_duration_since(Instant::now())));
            }
        }
    }

    /// Returns a deadline for finalizing MPI, or nothing if no thread can be started.
    fn ending(&self, timeout: Duration, processes: Arc<Processes>) -> Box<dyn Any> {
        let rank = processes.rank();
        let late = move || {
            let stopped = processes.first_stopped();
            let who = stopped.map_or("a rank".to_owned(), |rank| format!("rank {rank}, which has stopped,"));
            format!("all ranks had done their work, and {who} did not end within {} s", timeout.as_secs())
        };
        let deadline = Deadline::start(timeout, rank, "all ranks to end", late);
        fail_point::reach("MPI about to end");
        Box::new(deadline)
    }

    fn end(&self, finished: bool) {
        if finished {
            self.incoming.take();
            self.outgoing.take();
        } else {
            // MPI would wait for ranks that never arrive, so the process ends without finalizing it.
            std::mem::forget(Rc::clone(&self.library));
        }
    }
}
