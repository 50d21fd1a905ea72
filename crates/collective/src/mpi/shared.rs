//! The state that all links of a process share: which ranks have failed, ended or answered.

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

/// Interval at which the processes of this host are checked.
const LOOK: Duration = Duration::from_millis(100);
/// Time allowed for a waiting rank to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// Time allowed for messages sent before a rank ended to arrive.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Turns without progress that a wait keeps the processor, if every rank of the host has one, and gives it
/// away, before it sleeps.
const SPINS: u32 = 4000;
const YIELDS: u32 = 2000;
/// Sleeps in a wait, the longer after as many short ones.
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
    pub(super) processes: OnceCell<Arc<Processes>>,
    failure: RefCell<Option<Failure>>,
    incoming: RefCell<Option<Request>>,
    outgoing: RefCell<Vec<Request>>,
    /// Time at which each rank was heard to have ended.
    ended: RefCell<Vec<Option<Instant>>>,
    /// Call of each rank that answered.
    answered: RefCell<Vec<Option<Option<Header>>>>,
    /// The last collective that this rank began, and its group.
    pub(super) begun: Cell<Option<Header>>,
    looked: Cell<Instant>,
    idle: Cell<u32>,
    /// Number of spins on this host, [`SPINS`] or 0.
    spins: u32,
    /// True once all ranks have come to the end.
    finished: Cell<bool>,
}

impl Shared {
    pub(super) fn new(rank: usize, size: usize, library: Library, timeout: Duration, crowded: bool) -> Self {
        Shared {
            rank,
            size,
            library: Rc::new(library),
            timeout: Cell::new(timeout),
            processes: OnceCell::new(),
            failure: RefCell::default(),
            incoming: RefCell::default(),
            outgoing: RefCell::default(),
            ended: RefCell::new(vec![None; size]),
            answered: RefCell::new(vec![None; size]),
            begun: Cell::new(None),
            looked: Cell::new(Instant::now()),
            idle: Cell::new(0),
            spins: if crowded { 0 } else { SPINS },
            finished: Cell::new(false),
        }
    }

    /// Hears what others have to say; the first failure in the world as far as this rank knows.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.hear();
        if self.failure.borrow().is_none() {
            self.look();
        }
        self.failure.borrow().clone()
    }

    /// Makes a rank's failure known to all, unless another was first.
    pub(super) fn fail(&self, rank: usize, reason: &str) {
        self.hear();
        self.announce(rank, reason);
    }

    /// MPI itself failed in a call of this rank.
    pub(super) fn fault(&self, fault: &Fault) {
        self.announce(self.rank, &format!("MPI error {}: {}", fault.code, fault.text));
    }

    /// Takes in what has come, and completes what has gone.
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
        // A notice that cannot be delivered has nobody to miss it.
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
        // What is none is not of this program; there is nothing to do about it.
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
        // Who cannot be told is found to be silent or gone by other means.
        if let Ok(request) = self.library.notices.send(payload, to, 0) {
            self.outgoing.borrow_mut().push(request);
        }
    }

    fn tell_all(&self, notice: &Notice) {
        (0..self.size).filter(|rank| *rank != self.rank).for_each(|rank| self.tell(rank, notice));
    }

    /// Looks, now and then, whether a process of this host has gone without a word.
    fn look(&self) {
        if self.looked.get().elapsed() < LOOK {
            return;
        }
        self.looked.set(Instant::now());
        let Some(processes) = self.processes.get() else { return };
        if let Some(rank) = processes.first_gone() {
            // It may have said more before it ended.
            let heard = || self.failure.borrow().is_some() || self.ended.borrow()[rank].is_some();
            if !self.hear_until(LAST_WORDS, heard) {
                self.announce(rank, &processes.reason(rank));
            }
        }
    }

    /// Records a failure and tells everybody, unless there was one.
    fn announce(&self, rank: usize, reason: &str) {
        if self.failure.borrow().is_some() {
            return;
        }
        *self.failure.borrow_mut() = Some(Failure { rank, reason: reason.to_owned() });
        self.tell_all(&Notice::Failed { rank, reason: reason.to_owned() });
        // Short messages go out at once where their receiver is alive; nobody waits for one that is not.
        self.hear_until(LAST_WORDS, || self.outgoing.borrow().is_empty());
    }

    /// Hears until `done`; false if that takes longer than `patience`.
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

    /// Returns true if a rank ended so long ago that no message of it is on its way.
    pub(super) fn has_ended(&self, rank: usize) -> bool {
        let ended = self.ended.borrow().get(rank).copied().flatten();
        ended.is_some_and(|when| when.elapsed() >= LAST_WORDS)
    }

    /// Asks all other ranks where they are: those in a call of their own hear the question. What each
    /// answers, in rank order; nothing from one that does not.
    pub(super) fn ask(&self) -> Vec<Option<Option<Header>>> {
        self.answered.borrow_mut().fill(None);
        self.answered.borrow_mut()[self.rank] = Some(self.begun.get());
        self.tell_all(&Notice::Asked { rank: self.rank });
        let all = || self.answered.borrow().iter().all(Option::is_some);
        self.hear_until(ANSWER, || all() || self.failure.borrow().is_some());
        self.answered.borrow().clone()
    }

    /// Something was sent or received: the next wait begins attentively.
    pub(super) fn progressed(&self) {
        self.idle.set(0);
    }

    /// Gives the processor away, the longer the longer nothing has happened.
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

    /// Says that this rank has done all its calls, and waits until all have. Who still has something else to
    /// do may take its time; a process of this host that has stopped has that of the timeout. Errors: a
    /// failure meanwhile.
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

/// A rank's view of which others are alive.
pub(super) struct ProcessLiveness(pub(super) Rc<Shared>);

impl Liveness for ProcessLiveness {
    fn failure(&self) -> Option<Failure> {
        self.0.failure()
    }

    /// The first rank that does not answer, as waiting ranks do.
    fn silent(&self, among: &[usize]) -> Option<usize> {
        let answers = self.0.ask();
        among.iter().copied().find(|rank| answers[*rank].is_none())
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
            // MPI would wait for ranks that do not come: the process ends without it.
            std::mem::forget(Rc::clone(&self.library));
        }
    }
}
