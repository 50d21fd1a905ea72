//! State shared by all NCCL communicators of a rank: handles, the last call, and the reason for ending.

mod parting;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use crate::call::{Call, CallKind, Channel};
use crate::control::Watch;
use crate::error::{CollectiveError, Failure, Result};
use crate::nccl::call_thread::CallThread;
use crate::nccl::ending::{self, Ending};
use crate::nccl::fault::{self, Fault};
use crate::nccl::raw::Comm;
use crate::nccl::window::gpus::Signals;

/// Minimum timeout of a call that makes connections.
const CONNECTING: Duration = Duration::from_secs(60);
/// Time for which a leaving rank waits for its own device, and again for the other ranks.
const PARTING: Duration = Duration::from_secs(2);
/// Time allowed for NCCL to end aborted work.
const ABORTING: Duration = Duration::from_secs(5);
/// Time for which an NCCL error waits for the control channel to report a failed rank.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time for which a wait polls continuously.
const SPIN: Duration = Duration::from_micros(200);
/// Interval of polling afterwards.
const PAUSE: Duration = Duration::from_micros(20);

/// The reason why no more calls are possible.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// A rank failed.
    Failed(Failure),
    /// Work was not done in time. `peer` is the rank that all wait for, if known.
    Late { peer: Option<usize>, waited: Duration },
    /// NCCL failed.
    Library(Fault),
}

/// The last call of a rank.
struct Begun {
    call: Call,
    /// World numbers of the call's other ranks.
    others: Rc<[usize]>,
}

/// One rank's NCCL state. Does not own the device, whose guard owns this state.
pub(super) struct Shared {
    /// This rank's number in the world.
    pub(super) rank: usize,
    /// World numbers of all ranks.
    world: Vec<usize>,
    timeout: Duration,
    patience: Cell<Duration>,
    /// End of the grace period after another rank reported a delay; no wait times out before it.
    excused: Cell<Option<Instant>>,
    watch: Watch,
    calls: CallThread,
    comms: RefCell<Vec<Option<Comm>>>,
    /// Signals through which streams wait for other ranks.
    signals: RefCell<Vec<Weak<Signals>>>,
    begun: RefCell<Begun>,
    end: RefCell<Option<End>>,
    /// True while a group is being dropped: waits end early, but other groups' work continues.
    parting: Cell<bool>,
}

impl Shared {
    pub(super) fn new(
        rank: usize,
        world_size: usize,
        timeout: Duration,
        watch: Watch,
        calls: CallThread,
    ) -> Self {
        let call = Call { channel: Channel::Data, kind: CallKind::Connect, sequence: 0 };
        Shared {
            rank,
            world: (0..world_size).collect(),
            timeout,
            patience: Cell::new(timeout),
            excused: Cell::new(None),
            watch,
            calls,
            comms: RefCell::default(),
            signals: RefCell::default(),
            begun: RefCell::new(Begun { call, others: Rc::default() }),
            end: RefCell::default(),
            parting: Cell::new(false),
        }
    }

    /// Registers a communicator, possibly before it is created, and returns its index.
    pub(super) fn keep(&self, comm: Comm) -> usize {
        let mut comms = self.comms.borrow_mut();
        comms.push(Some(comm));
        comms.len() - 1
    }

    /// Registers signals through which streams wait, until they are dropped.
    pub(super) fn waits_by(&self, signals: &Rc<Signals>) {
        let mut all = self.signals.borrow_mut();
        all.retain(|signals| signals.strong_count() > 0);
        all.push(Rc::downgrade(signals));
    }

    /// Ends the waits of streams. Repeated until all work is done, because other ranks may still write lower
    /// numbers.
    fn release(&self) {
        self.signals.borrow().iter().filter_map(Weak::upgrade).for_each(|signals| signals.release());
    }

    /// Returns a communicator by its index.
    ///
    /// # Errors
    /// The communicator has ended.
    pub(super) fn comm(&self, comm_index: usize, call: Call) -> Result<Comm> {
        self.alive(call)?;
        let comm = self.comms.borrow().get(comm_index).copied().flatten();
        comm.ok_or_else(|| self.error(&End::Library(gone()), call))
    }

    /// Records that this rank begins a call with these other ranks, for timeout messages.
    pub(super) fn begins(&self, call: Call, others: &Rc<[usize]>) {
        *self.begun.borrow_mut() = Begun { call, others: Rc::clone(others) };
        self.watch.liveness().sign();
    }

    /// Checks that calls are still possible.
    ///
    /// # Errors
    /// The communicators have ended, or a rank has failed.
    pub(super) fn alive(&self, call: Call) -> Result<()> {
        if self.end.borrow().is_none()
            && let Some(failure) = self.watch.failure()
        {
            self.finish(End::Failed(failure));
        }
        self.end.borrow().as_ref().map_or(Ok(()), |end| Err(self.error(end, call)))
    }

    /// Makes an NCCL call on the call thread, and waits until the communicator accepts the next call.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn make(
        &self,
        comm: Comm,
        call: Call,
        body: impl FnOnce() -> fault::Result<()> + Send + 'static,
    ) -> Result<()> {
        self.have_made(call, body)?;
        self.settle(comm, call)
    }

    /// Waits until a non-blocking communicator has finished its last call.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn settle(&self, comm: Comm, call: Call) -> Result<()> {
        self.until(call, || match comm.is_ready() {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(fault) => Some(Err(fault)),
        })
    }

    fn have_made(&self, call: Call, body: impl FnOnce() -> fault::Result<()> + Send + 'static) -> Result<()> {
        self.calls.begin(body);
        self.until(call, || self.calls.answer())
    }

    /// Polls `answer` until it returns a result.
    ///
    /// # Errors
    /// The first failure.
    fn until(&self, call: Call, answer: impl Fn() -> Option<fault::Result<()>>) -> Result<()> {
        let began = Instant::now();
        loop {
            match answer() {
                Some(Ok(())) => return Ok(()),
                Some(Err(fault)) => return Err(self.broken(fault, call)),
                None => {}
            }
            let waited = began.elapsed();
            if waited < SPIN {
                std::hint::spin_loop();
                continue;
            }
            if let Some(end) = self.trouble(waited) {
                let error = self.error(&end, call);
                self.finish(end);
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends all calls after an NCCL error, and returns the error. If the control channel reports a failed
    /// rank, the error names it.
    pub(super) fn broken(&self, fault: Fault, call: Call) -> CollectiveError {
        let end = self.behind(fault);
        let error = self.error(&end, call);
        self.finish(end);
        error
    }

    /// The device's guard: returns the reason to give up a host wait after `waited`, if any.
    pub(super) fn guard(&self, waited: Duration) -> Option<String> {
        let call = self.begun.borrow().call;
        if self.parting.get() {
            let late = waited >= PARTING || self.end.borrow().is_some() || self.watch.failure().is_some();
            return late.then(|| format!("rank {} leaves with unfinished work", self.rank));
        }
        let end = self.end.borrow().clone();
        if let Some(end) = end {
            self.release();
            // Aborted work ends; work that does not end is not NCCL's.
            return (waited >= ABORTING).then(|| self.error(&end, call).to_string());
        }
        let end = self.trouble(waited)?;
        let reason = self.error(&end, call).to_string();
        self.finish(end);
        Some(reason)
    }

    /// Returns the first reason to give up after waiting for `waited`.
    fn trouble(&self, waited: Duration) -> Option<End> {
        if let Some(failure) = self.watch.failure() {
            return Some(End::Failed(failure));
        }
        // A running call reports its own errors, and a communicator that is being created must not be
        // queried.
        if !self.calls.busy().is_set() {
            let comms: Vec<Comm> = self.comms.borrow().iter().flatten().copied().collect();
            let fault = comms.iter().filter(|comm| comm.is_made()).find_map(|comm| comm.is_ready().err());
            if let Some(fault) = fault {
                return Some(self.behind(fault));
            }
        }
        let is_excused = self.excused.get().is_some_and(|until| Instant::now() < until);
        if waited < self.patience.get() || is_excused {
            return None;
        }
        if self.watch.liveness().is_delayed() {
            self.excused.set(Some(Instant::now() + self.timeout));
            return None;
        }
        let only = match *self.begun.borrow().others {
            [only] => Some(only),
            _ => None,
        };
        // The rank that this rank waits for may itself wait for a third.
        let peer = self.watch.liveness().silent(&self.world).or(only);
        // The query may have revealed a failure.
        Some(self.watch.failure().map_or(End::Late { peer, waited }, End::Failed))
    }

    /// Returns the cause of an NCCL error: a failed peer, whose message is more precise, or the error itself.
    fn behind(&self, fault: Fault) -> End {
        let until = Instant::now() + LAST_WORDS;
        loop {
            if let Some(failure) = self.watch.failure() {
                return End::Failed(failure);
            }
            if Instant::now() >= until {
                return End::Library(fault);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends all calls, including device work that waits for peers.
    pub(super) fn finish(&self, end: End) {
        if self.end.borrow().is_some() {
            return;
        }
        *self.end.borrow_mut() = Some(end.clone());
        self.release();
        let comms: Vec<Comm> = self.comms.borrow_mut().iter_mut().filter_map(Option::take).collect();
        ending::end(&comms, &self.abort(), ABORTING);
        if let End::Late { peer: Some(peer), waited } = end {
            let call = self.begun.borrow().call;
            let waited = waited.as_secs_f64();
            let reason = format!("it did not answer rank {} within {waited:.1} s, in {call}", self.rank);
            self.watch.liveness().lost(peer, &reason);
        }
    }

    fn abort(&self) -> Ending {
        Ending::Abort(self.calls.busy().clone())
    }

    /// Returns the error of a call made after the end.
    fn error(&self, end: &End, call: Call) -> CollectiveError {
        let rank = self.rank;
        match end.clone() {
            End::Failed(failure) => CollectiveError::failed(rank, call, failure),
            End::Late { peer: Some(peer), waited } => CollectiveError::Timeout { rank, call, peer, waited },
            End::Late { peer: None, waited } => CollectiveError::Stalled { rank, call, waited },
            End::Library(Fault { code, text }) => {
                CollectiveError::Library { rank, call, library: super::NAME, code, text }
            }
        }
    }

    /// Runs `body` with a longer timeout, because it may make connections.
    pub(super) fn patiently<T>(&self, body: impl FnOnce() -> T) -> T {
        self.patience.set(self.timeout.max(CONNECTING));
        let done = body();
        self.patience.set(self.timeout);
        done
    }
}

fn gone() -> Fault {
    Fault { code: 0, text: "the communicator has ended".to_owned() }
}
