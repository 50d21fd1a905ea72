//! State shared by all links of a process: which ranks have failed, ended or answered.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::{Call, Signature};
use crate::control::{Liveness, Watch};
use crate::error::Failure;
use crate::link::Absent;
use crate::processes::post::Post;
use crate::processes::process::Processes;
use crate::processes::wire::{Header, Notice};
use system::terminal;

/// Interval between checks of this host's processes.
const LOOK: Duration = Duration::from_millis(100);
/// Time within which a waiting rank must answer a query.
const ANSWER: Duration = Duration::from_millis(500);
/// Time for a rank's last messages to arrive after its end.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// A rank's answer to a query: the header of its latest collective; `None` if it has begun none.
#[derive(Clone, Copy)]
struct Answer(Option<Header>);

/// One process's state in the world.
pub(crate) struct Shared {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) post: Rc<dyn Post>,
    pub(crate) timeout: Cell<Duration>,
    /// The task that all ranks must finish before their next calls, for messages about slow ranks.
    pub(crate) doing: Cell<Option<&'static str>>,
    pub(crate) processes: OnceCell<Arc<Processes>>,
    failure: RefCell<Option<Failure>>,
    /// Arrival time of each rank's announcement of its end.
    ended: RefCell<Vec<Option<Instant>>>,
    /// Answers of the ranks to the last query; `None` for ranks that have not answered.
    answered: RefCell<Vec<Option<Answer>>>,
    /// Whether a rank answered that it is delayed.
    is_delayed: Cell<bool>,
    /// Whether this rank is delayed, and answers queries accordingly.
    delayed: Cell<bool>,
    /// The last collective that this rank began.
    begun: Cell<Option<Header>>,
    looked: Cell<Instant>,
    idle: Cell<u32>,
    /// True once all ranks have ended.
    finished: Cell<bool>,
}

impl Shared {
    pub(crate) fn new(rank: usize, size: usize, post: Rc<dyn Post>, timeout: Duration) -> Self {
        Shared {
            rank,
            size,
            post,
            timeout: Cell::new(timeout),
            doing: Cell::new(None),
            processes: OnceCell::new(),
            failure: RefCell::default(),
            ended: RefCell::new(vec![None; size]),
            answered: RefCell::new(vec![None; size]),
            is_delayed: Cell::new(false),
            delayed: Cell::new(false),
            begun: Cell::new(None),
            looked: Cell::new(Instant::now()),
            idle: Cell::new(0),
            finished: Cell::new(false),
        }
    }

    /// Receives notices, and returns the first failure in the world known to this rank.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.hear();
        if self.failure.borrow().is_none() {
            self.look();
        }
        self.failure.borrow().clone()
    }

    /// Announces a rank's failure to all ranks, unless another failure came first.
    pub(crate) fn fail(&self, rank: usize, reason: &str) {
        self.hear();
        self.announce(rank, reason);
    }

    /// Announces that the transport failed in a call of this rank.
    #[cfg(feature = "mpi")]
    pub(crate) fn fault(&self, reason: &str) {
        self.announce(self.rank, reason);
    }

    /// Receives pending notices.
    fn hear(&self) {
        loop {
            match self.post.receive() {
                Ok(Some(notice)) => self.take(notice),
                Ok(None) => return,
                Err(reason) => {
                    self.failure.borrow_mut().get_or_insert(Failure { rank: self.rank, reason });
                    return;
                }
            }
        }
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
            Notice::Asked { rank } if rank < self.size => {
                let answer = match self.delayed.get() {
                    true => Notice::Delayed { rank: self.rank },
                    false => Notice::Answered { rank: self.rank, header: self.begun.get() },
                };
                self.post.send(rank, &answer);
            }
            // No rank of this world has sent a query.
            Notice::Asked { .. } => {}
            Notice::Delayed { rank } => {
                self.is_delayed.set(true);
                if let Some(answered) = self.answered.borrow_mut().get_mut(rank) {
                    *answered = Some(Answer(None));
                }
            }
            Notice::Answered { rank, header } => {
                if let Some(answered) = self.answered.borrow_mut().get_mut(rank) {
                    *answered = Some(Answer(header));
                }
            }
        }
    }

    fn notify_all(&self, notice: &Notice) {
        (0..self.size).filter(|rank| *rank != self.rank).for_each(|rank| self.post.send(rank, notice));
    }

    /// Checks at intervals for ranks that ended silently: processes of this host, and closed connections.
    fn look(&self) {
        if self.looked.get().elapsed() < LOOK {
            return;
        }
        self.looked.set(Instant::now());
        let is_awaited = |rank: usize| self.ended.borrow().get(rank).is_some_and(Option::is_none);
        let gone = self.processes.get().and_then(|processes| processes.first_gone());
        let gone = gone.filter(|rank| is_awaited(*rank)).or_else(|| self.post.closed(&is_awaited));
        let Some(rank) = gone else { return };
        // The process may have sent a message before it ended.
        let received = || self.failure.borrow().is_some() || !is_awaited(rank);
        if !self.hear_until(LAST_WORDS, received) {
            let unknown = || "its process has ended without a message".to_owned();
            let reason = self.processes.get().map_or_else(unknown, |processes| processes.reason(rank));
            self.announce(rank, &reason);
        }
    }

    /// Records a failure and announces it to all ranks, unless one was recorded before.
    fn announce(&self, rank: usize, reason: &str) {
        if self.failure.borrow().is_some() {
            return;
        }
        *self.failure.borrow_mut() = Some(Failure { rank, reason: reason.to_owned() });
        self.notify_all(&Notice::Failed { rank, reason: reason.to_owned() });
        // Short messages are sent at once to a living receiver; a dead receiver is not waited for.
        self.hear_until(LAST_WORDS, || self.post.is_sent());
    }

    /// Receives notices until `done`; returns false if this takes longer than `patience`.
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
    pub(crate) fn has_ended(&self, rank: usize) -> bool {
        let ended = self.ended.borrow().get(rank).copied().flatten();
        ended.is_some_and(|when| when.elapsed() >= LAST_WORDS)
    }

    /// Queries all other ranks for their current call, and returns the answers in rank order. Only ranks that
    /// wait in a call answer.
    fn ask(&self) -> Vec<Option<Answer>> {
        self.answered.borrow_mut().fill(None);
        self.is_delayed.set(false);
        self.answered.borrow_mut()[self.rank] = Some(Answer(self.begun.get()));
        self.notify_all(&Notice::Asked { rank: self.rank });
        let all = || self.answered.borrow().iter().all(Option::is_some);
        self.hear_until(ANSWER, || all() || self.failure.borrow().is_some());
        self.answered.borrow().clone()
    }

    /// Returns a handle that reports failures and outlives the borrow of a link.
    pub(crate) fn watch(self: &Rc<Self>) -> Watch {
        Watch::over(ProcessLiveness(Rc::clone(self)))
    }

    /// Records that this rank begins a collective of the group identified by `context`.
    pub(crate) fn begin(&self, context: u64, signature: &Signature) {
        self.begun.set(Some(Header::new(context, signature, 0)));
    }

    /// Returns the rank, by number among `members`, that has kept a call of their group waiting.
    pub(crate) fn absent(&self, members: &[usize], context: u64, call: Call) -> Option<Absent> {
        let answers = self.ask();
        if let Some(rank) = members.iter().position(|member| answers[*member].is_none()) {
            return Some(Absent::Silent(rank));
        }
        let mine = self.begun.get().filter(|_| !call.kind.is_point_to_point())?.signature();
        let elsewhere = |(rank, member): (usize, &usize)| {
            let header = answers[*member].and_then(|answer| answer.0)?;
            let theirs = header.signature();
            let same = header.context == context && mine.agrees(&theirs);
            (!same).then_some(Absent::Elsewhere { rank, mine, theirs })
        };
        members.iter().enumerate().find_map(elsewhere)
    }

    /// Tells the user which rank is slow to finish the current task. Only one waiting rank prints this: rank
    /// 0, or rank 1 if rank 0 is slow.
    pub(crate) fn say_slow(&self, rank: usize) {
        let Some(doing) = self.doing.get().filter(|_| self.rank == usize::from(rank == 0)) else { return };
        let host = self.processes.get().and_then(|list| list.all().get(rank)).map(|p| p.host.as_str());
        let host = host.unwrap_or("its host");
        let seconds = self.timeout.get().as_secs();
        terminal::say(&format!(
            "plimsoll: waiting for rank {rank} on {host} to {doing}, {seconds} s at most"
        ));
    }

    /// Records progress, so that the next wait polls again before it sleeps.
    pub(crate) fn progressed(&self) {
        self.idle.set(0);
    }

    /// Yields the processor, longer the longer there was no progress.
    pub(crate) fn idle(&self, deadline: Instant) {
        let idle_rounds = self.idle.get();
        self.idle.set(idle_rounds.saturating_add(1));
        // Returns early enough to check the processes of this host.
        self.post.idle(idle_rounds, deadline.min(Instant::now() + LOOK));
    }

    /// Announces that this rank has made all its calls, and waits for all other ranks to do the same. A busy
    /// rank may take any time; a stopped process of this host has the timeout.
    ///
    /// # Errors
    /// A rank failed in the meantime.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        self.notify_all(&Notice::Ended { rank: self.rank });
        let missing =
            || (0..self.size).find(|rank| *rank != self.rank && self.ended.borrow()[*rank].is_none());
        let mut lively = Instant::now();
        loop {
            let done = || missing().is_none() && self.post.is_sent();
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

/// A rank's record of live and failed ranks.
struct ProcessLiveness(Rc<Shared>);

impl Liveness for ProcessLiveness {
    fn failure(&self) -> Option<Failure> {
        self.0.failure()
    }

    /// Returns the first rank that does not answer; waiting ranks do.
    fn silent(&self, among: &[usize]) -> Option<usize> {
        let answers = self.0.ask();
        among.iter().copied().find(|rank| answers[*rank].is_none())
    }

    /// Answers pending queries of other ranks.
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
        self.post.end(self.finished.get());
    }
}
