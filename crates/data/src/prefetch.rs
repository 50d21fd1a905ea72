//! Prefetching: a thread reads micro-batches before they are needed.

use crate::{Error, MicroBatch, MicroBatchId, Source};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use system::fail_point;

/// Time after which waiting for a read is logged. The time doubles for each further message.
const SLOW: Duration = Duration::from_secs(2);
/// Interval at which a wait calls the function set by [`Prefetcher::while_waiting`].
const TURN: Duration = Duration::from_millis(50);

/// A request to the reading thread, with a micro-batch to fill.
type Request = (MicroBatchId, MicroBatch);
/// The micro-batch of a request, filled unless reading failed.
type Answer = (MicroBatch, Result<(), Error>);

/// Reads the micro-batches of a source before they are needed.
///
/// [`Prefetcher::get`] receives the micro-batch that is needed and those that follow. A thread reads up to
/// `depth` of them while the caller works. The micro-batches equal those that the caller would read itself,
/// and an error is returned by the call that needs the micro-batch. Dropping does not wait for the thread.
pub struct Prefetcher {
    source: Arc<dyn Source>,
    depth: usize,
    thread: Option<Thread>,
    /// Unanswered requests, oldest first.
    requested: VecDeque<MicroBatchId>,
    spare: Vec<MicroBatch>,
    /// Identifier of the micro-batch in `batch`.
    held: Option<MicroBatchId>,
    batch: MicroBatch,
    /// Called repeatedly while waiting for a read.
    on_wait: Option<Box<dyn Fn()>>,
}

/// The channels to and from the reading thread.
struct Thread {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
}

impl Prefetcher {
    /// Creates a prefetcher of `depth` micro-batches. With 0, each is read when it is needed. The thread
    /// starts with the first read, unless reading takes no time.
    #[must_use]
    pub fn new(source: Arc<dyn Source>, depth: usize) -> Self {
        let depth = if source.takes_time() { depth } else { 0 };
        let requested = VecDeque::new();
        let spare = Vec::new();
        let batch = MicroBatch::default();
        let thread = None;
        let held = None;
        let on_wait = None;
        Self { source, depth, thread, requested, spare, held, batch, on_wait }
    }

    /// Sets a function that is called on the caller's thread several times a second while waiting for a read.
    #[must_use]
    pub fn while_waiting(self, call: impl Fn() + 'static) -> Self {
        Self { on_wait: Some(Box::new(call)), ..self }
    }

    /// Returns the maximum number of micro-batches that a prefetcher of `depth` keeps in memory.
    #[must_use]
    pub const fn micro_batches(depth: usize) -> usize {
        // Besides those ahead: the one in use, and the next one while it is waited for.
        if depth == 0 { 1 } else { depth + 2 }
    }

    /// Returns whether the last call of [`Prefetcher::get`] returned this micro-batch.
    #[must_use]
    pub fn holds(&self, id: MicroBatchId) -> bool {
        self.held == Some(id)
    }

    /// Returns a micro-batch once it has been read, and requests those in `next`.
    pub fn get(
        &mut self,
        id: MicroBatchId,
        next: impl Iterator<Item = MicroBatchId>,
    ) -> Result<&MicroBatch, Error> {
        if self.held != Some(id) {
            self.held = None;
            self.read(id, next)?;
            self.held = Some(id);
        }
        Ok(&self.batch)
    }

    /// Reads a micro-batch into `batch`.
    fn read(&mut self, id: MicroBatchId, next: impl Iterator<Item = MicroBatchId>) -> Result<(), Error> {
        if self.requested.front().is_some_and(|requested| *requested != id) {
            self.stop();
        }
        if self.depth == 0 {
            // The micro-batch in use is the only one.
            self.spare.push(std::mem::take(&mut self.batch));
        }
        self.request([id].into_iter().chain(next));
        match self.wait(id) {
            Some((batch, read)) => {
                self.requested.pop_front();
                let before = std::mem::replace(&mut self.batch, batch);
                if self.depth > 0 {
                    self.spare.push(before);
                }
                read
            }
            None => {
                self.stop();
                if let Some(spare) = self.spare.pop() {
                    self.batch = spare;
                }
                read(&*self.source, id, &mut self.batch)
            }
        }
    }

    /// Requests the micro-batches of `ids` that are not requested yet. `ids` must begin with those already
    /// requested.
    fn request(&mut self, ids: impl Iterator<Item = MicroBatchId>) {
        if self.thread.is_none() && self.source.takes_time() {
            self.thread = Thread::start(Arc::clone(&self.source));
        }
        let Some(thread) = &self.thread else { return };
        for id in ids.take(self.depth + 1).skip(self.requested.len()) {
            if thread.requests.send((id, self.spare.pop().unwrap_or_default())).is_err() {
                return;
            }
            self.requested.push_back(id);
        }
    }

    /// Waits for the answer to the oldest request, whose micro-batch is `id`; `None` if the thread has ended.
    fn wait(&self, id: MicroBatchId) -> Option<Answer> {
        let thread = self.thread.as_ref()?;
        let began = Instant::now();
        let mut reported = SLOW;
        loop {
            match thread.answers.recv_timeout(TURN) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.on_wait.iter().for_each(|call| call());
            if began.elapsed() >= reported {
                reported *= 2;
                let file = self.source.file_of(id);
                let of_file = file.map_or(String::new(), |file| format!(" of {}", file.display()));
                tracing::warn!("reading {id}{of_file} has taken {} s so far", began.elapsed().as_secs());
            }
        }
    }

    /// Discards all requests. The thread ends after its current read.
    fn stop(&mut self) {
        self.thread = None;
        self.requested.clear();
    }
}

fn read(source: &dyn Source, id: MicroBatchId, out: &mut MicroBatch) -> Result<(), Error> {
    if source.takes_time() {
        fail_point::reach("micro-batch about to be read");
    }
    source.read(id, out)
}

impl Thread {
    /// Starts a reading thread; `None` if the system refuses to.
    fn start(source: Arc<dyn Source>) -> Option<Self> {
        let (requests, requested) = channel::<Request>();
        let (answer, answers) = channel();
        let body = move || {
            for (id, mut batch) in requested {
                let read = read(&*source, id, &mut batch);
                if answer.send((batch, read)).is_err() {
                    return;
                }
            }
        };
        system::threads::spawn("data", body).ok()?;
        Some(Self { requests, answers })
    }
}

impl fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { depth, requested, held, .. } = self;
        f.debug_struct("Prefetcher")
            .field("depth", depth)
            .field("requested", requested)
            .field("held", held)
            .finish_non_exhaustive()
    }
}
