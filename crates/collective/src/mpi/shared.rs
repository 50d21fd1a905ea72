//! State shared by all links of a process: which ranks have failed, ended or answered.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::mpi::environment::Universe;

use crate::control::Liveness;
use crate::error::Failure;
use crate::mpi::processes::Processes;
use crate::mpi::raw::{Channel, Fault, Request};
use crate::mpi::wire::{Header, NOTICE_BYTES, Notice};
use crate::payload::PayloadPool;
use system::terminal;

/// Interval between checks of this host's processes.
const LOOK: Duration = Duration::from_millis(100);
/// Time within which a waiting rank must answer.
const ANSWER: Duration = Duration::from_millis(500);
/// Time for messages sent before a rank ended to arrive.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Number of polls without progress before a wait sleeps, if every rank of the host has its own processor.
const SPINS: u32 = 4000;
const YIELDS: u32 = 2000;
/// Durations of sleeps in a wait: short ones first, then longer ones.
const SLEEPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
const SHORT_SLEEPS: u32 = 200;

/// The initialised MPI library and its communicators, which are dropped before MPI is finalized.
pub(super) struct Library {
    /// Communicator for the messages of calls.
    pub(super) traffic: Channel,
    /// Communicator for notices.
    pub(super) notices: Channel,
    pub(super) universe: Universe,
}

/// One process's state in the world.
pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) library: Rc<Library>,
    pub(super) timeout: Cell<Duration>,
    /// The task of all ranks at present, if the user learns whom it waits for.
    pub(super) doing: Cell<Option<&'static str>>,
    pub(super) processes: OnceCell<Arc<Processes>>,
    failure: RefCell<Option<Failure>>,
    incoming: RefCell<Option<Request>>,
    outgoing: RefCell<Vec<Request>>,
    /// Time at which each rank's end was announced.
    ended: RefCell<Vec<Option<Instant>>>,
    /// Latest collective of each rank that answered.
    answered: RefCell<Vec<Option<Option<Header>>>>,
    /// Whether a rank that answered is delayed.
    is_delayed: Cell<bool>,
    /// Whether this rank is delayed, so that it says so if it is asked.
    delayed: Cell<bool>,
    /// The last collective that this rank began, with its group.
    pub(super) begun: Cell<Option<Header>>,
    looked: Cell<Instant>,
    idle: Cell<u32>,
    /// Number of polls before sleeping: [`SPINS`], or 0 if the host is crowded.
    spins: u32,
    /// True once all ranks have ended.
    finished: Cell<bool>,
}

impl Shared {
    pub(super) fn new(rank: usize, size: usize, library: Library, timeout: Duration, crowded: bool) -> Self {
        Shared {
            rank,
            size,
            library: Rc::new(library),
            timeout: Cell::new(timeout),
            doing: Cell::new(None),
            processes: OnceCell::new(),
            failure: RefCell::default(),
            incoming: RefCell::default(),
            outgoing: RefCell::default(),
            ended: RefCell::new(vec![None; size]),
            answered: RefCell::new(vec![None; size]),
            is_delayed: Cell::new(false),
            delayed: Cell::new(false),
            begun: Cell::new(None),
            looked: Cell::new(Instant::now()),
            idle: Cell::new(0),
            spins: if crowded { 0 } else { SPINS },
            finished: Cell::new(false),
        }
    }

    /// Receives notices; returns the first failure in the world that this rank knows of.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.hear();
        if self.failure.borrow().is_none() {
            self.look();
        }
        self.failure.borrow().clone()
    }

    /// Announces a rank's failure to all, unless another failure came first.
    pub(super) fn fail(&self, rank: usize, reason: &str) {
        self.hear();
        self.announce(rank, reason);
    }

    /// Announces that MPI failed in a call of this rank.
    pub(super) fn fault(&self, fault: &Fault) {
        self.announce(self.rank, &format!("MPI error {}: {}", fault.code, fault.text));
    }

    /// Receives pending notices and completes sent ones.
    fn hear(&self) {
        loop {
            match self.next_notice() {
                Ok(Some(notice)) => self.take(notice),
                Ok(None) => break,
                Err(fault) => {
                    let reason = format!("MPI error {}: {}", fault.code, fault.text);
                    self.failure.borrow_mut().get_or_insert(Failure { rank: self.rank, reason });
                    break;
                }
            }
        }
        // A notice that cannot be delivered has no receiver left.
        self.outgoing.borrow_mut().retain_mut(|request| matches!(request.test(), Ok(None)));
    }

    fn next_notice(&self) -> Result<Option<Notice>, Fault> {
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
        // A message that is not a notice does not come from this program; it is ignored.
        Ok(Notice::decode(&completed.payload.bytes()[..completed.bytes]))
    }

    fn take(&self, notice: Notice) {
        match notice {
            Notice::Failed { rank, reason } => {
                self.failure.borrow_mut().get_or_insert(Failure { rank, reason });
            }
            Notice::Ended { rank } => {
                if let Some(ended) = self.ended.borrow_mut().get_mut(rank) {
                    ended.get_or_insert_with(Instant::now);
                }
            }
            Notice::Asked { rank } if self.delayed.get() => {
                self.tell(rank, &Notice::Delayed { rank: self.rank });
            }
            Notice::Delayed { rank } => {
                self.is_delayed.set(true);
                if let Some(answered) = self.answered.borrow_mut().get_mut(rank) {
                    *answered = Some(None);
                }
            }
            Notice::Asked { rank } => {
                self.tell(rank, &Notice::Answered { rank: self.rank, header: self.begun.get() });
            }
            Notice::Answered { rank, header } => {
                if let Some(answered) = self.answered.borrow_mut().get_mut(rank) {
                    *answered = Some(header);
                }
            }
        }
    }

    fn tell(&self, to: usize, notice: &Notice) {
        let bytes = notice.encode();
        let mut payload = PayloadPool::default().take(bytes.len());
        payload.bytes_mut().copy_from_slice(&bytes);
        // A rank that cannot be notified is later found to be silent or gone.
        if let Ok(request) = self.library.notices.send(payload, to, 0) {
            self.outgoing.borrow_mut().push(request);
        }
    }

    fn tell_all(&self, notice: &Notice) {
        (0..self.size).filter(|rank| *rank != self.rank).for_each(|rank| self.tell(rank, notice));
    }

    /// Checks at intervals for processes of this host that ended without a message.
    fn look(&self) {
        if self.looked.get().elapsed() < LOOK {
            return;
        }
        self.looked.set(Instant::now());
        let Some(processes) = self.processes.get() else { return };
        if let Some(rank) = processes.first_gone() {
            // The process may have sent a message before it ended.
            let received = || self.failure.borrow().is_some() || self.ended.borrow()[rank].is_some();
            if !self.hear_until(LAST_WORDS, received) {
                self.announce(rank, &processes.reason(rank));
            }
        }
    }

    /// Records a failure and announces it to all ranks, unless one was recorded before.
    fn announce(&self, rank: usize, reason: &str) {
        if self.failure.borrow().is_some() {
            return;
        }
        *self.failure.borrow_mut() = Some(Failure { rank, reason: reason.to_owned() });
        self.tell_all(&Notice::Failed { rank, reason: reason.to_owned() });
        // Short messages are sent at once if their receiver is alive; a dead receiver is not waited for.
        self.hear_until(LAST_WORDS, || self.outgoing.borrow().is_empty());
    }

    /// Receives notices until `done`; returns false if that takes longer than `patience`.
    fn hear_until(&self, patience: Duration, done: impl Fn() -> bool) -> bool {
        let until = Instant::now() + patience;
        self.progressed();
        loop {
            self.hear();
            if done() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            self.idle(until);
        }
    }

    /// Returns whether a rank ended so long ago that all its messages have arrived.
    pub(super) fn has_ended(&self, rank: usize) -> bool {
        let ended = self.ended.borrow().get(rank).copied().flatten();
        ended.is_some_and(|when| when.elapsed() >= LAST_WORDS)
    }

    /// Asks all other ranks which call they are in; ranks that wait in a call answer. Returns the answers in
    /// rank order; `None` for a rank that does not answer.
    pub(super) fn ask(&self) -> Vec<Option<Option<Header>>> {
        self.answered.borrow_mut().fill(None);
        self.is_delayed.set(false);
        self.answered.borrow_mut()[self.rank] = Some(self.begun.get());
        self.tell_all(&Notice::Asked { rank: self.rank });
        let all = || self.answered.borrow().iter().all(Option::is_some);
        self.hear_until(ANSWER, || all() || self.failure.borrow().is_some());
        self.answered.borrow().clone()
    }

    /// Says once in a wait that a rank has not done what all are to do; of those who wait for it, the first.
    pub(super) fn say_slow(&self, rank: usize) {
        let Some(doing) = self.doing.get().filter(|_| self.rank == usize::from(rank == 0)) else { return };
        let host = self.processes.get().and_then(|known| known.all().get(rank)).map(|p| p.host.as_str());
        let host = host.unwrap_or("its host");
        let seconds = self.timeout.get().as_secs();
        terminal::say(&format!(
            "plimsoll: waiting for rank {rank} on {host} to {doing}, {seconds} s at most"
        ));
    }

    /// Records progress: the next wait polls again before it sleeps.
    pub(super) fn progressed(&self) {
        self.idle.set(0);
    }

    /// Yields the processor, for longer the longer there was no progress.
    pub(super) fn idle(&self, deadline: Instant) {
        let turns = self.idle.get();
        self.idle.set(turns.saturating_add(1));
        match turns.checked_sub(self.spins) {
            None => std::hint::spin_loop(),
            Some(..YIELDS) => std::thread::yield_now(),
            Some(turns) => {
                let sleep = SLEEPS[usize::from(turns > YIELDS + SHORT_SLEEPS)];
                std::thread::sleep(sleep.min(deadline.saturating_duration_since(Instant::now())));
            }
        }
    }

    /// Announces that this rank has made all its calls, and waits until all ranks have. A rank that does
    /// other work may take any time; a stopped process of this host has the timeout. Errors: a failure in the
    /// meantime.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.tell_all(&Notice::Ended { rank: self.rank });
        let missing =
            || (0..self.size).find(|rank| *rank != self.rank && self.ended.borrow()[*rank].is_none());
        let mut lively = Instant::now();
        loop {
            let done = || missing().is_none() && self.outgoing.borrow().is_empty();
            if self.hear_until(LOOK, || done() || self.failure.borrow().is_some()) && done() {
                self.finished.set(true);
                return Ok(());
            }
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            match (missing(), self.processes.get()) {
                (Some(rank), Some(processes)) if processes.has_stopped(rank) => {
                    if lively.elapsed() >= self.timeout.get() {
                        self.announce(rank, "its process has stopped");
                    }
                }
                _ => lively = Instant::now(),
            }
        }
    }
}

/// A rank's knowledge of which ranks are alive.
pub(super) struct ProcessLiveness(pub(super) Rc<Shared>);

impl Liveness for ProcessLiveness {
    fn failure(&self) -> Option<Failure> {
        self.0.failure()
    }

    /// Returns the first rank that does not answer; waiting ranks do.
    fn silent(&self, among: &[usize]) -> Option<usize> {
        let answers = self.0.ask();
        among.iter().copied().find(|rank| answers[*rank].is_none())
    }

    /// Answers ranks that ask.
    fn delay(&self) {
        self.0.delayed.set(true);
        self.0.hear();
        self.0.delayed.set(false);
    }

    fn is_delayed(&self) -> bool {
        self.0.ask();
        self.0.is_delayed.get()
    }

    fn lost(&self, rank: usize, reason: &str) {
        self.0.fail(rank, reason);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.finished.get() {
            self.incoming.take();
            self.outgoing.take();
        } else {
            // MPI would wait for ranks that never arrive, so the process ends without finalizing it.
            std::mem::forget(Rc::clone(&self.library));
        }
    }
}
