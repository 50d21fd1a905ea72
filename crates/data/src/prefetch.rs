//! Prefetching: a thread reads micro-batches before they are needed.

use crate::{Error, MicroBatch, MicroBatchId, Source};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use system::fail_point;

/// Time after which a read that is waited for is reported; each further report comes after twice as long.
const SLOW: Duration = Duration::from_secs(2);
/// Interval at which a wait calls the function of [`Prefetcher::while_waiting`].
const TURN: Duration = Duration::from_millis(50);

/// A request to the thread that reads, with a micro-batch to fill.
type Request = (MicroBatchId, MicroBatch);
/// The micro-batch of a request, filled unless reading failed.
type Answer = (MicroBatch, Result<(), Error>);

/// Reads the micro-batches of a source before they are needed.
///
/// [`Prefetcher::get`] learns which micro-batch is needed and which follow. A thread reads at most `depth`
/// of these while the caller works. The micro-batches equal those that the caller would read, and an error
/// is returned by the call that needs the micro-batch. Dropping does not wait for the thread.
pub struct Prefetcher {
    source: Arc<dyn Source>,
    depth: usize,
    thread: Option<Thread>,
    /// Requests that are not answered yet, oldest first.
    requested: VecDeque<MicroBatchId>,
    spare: Vec<MicroBatch>,
    /// The micro-batch in `batch`.
    held: Option<MicroBatchId>,
    batch: MicroBatch,
    /// Called at times while a read is waited for.
    on_wait: Option<Box<dyn Fn()>>,
}

/// The ends of the channels to the thread that reads.
struct Thread {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
}

impl Prefetcher {
    /// Creates a prefetcher of `depth` micro-batches; with 0, each is read when it is needed. The thread
    /// starts with the first read, and not at all if reading takes no time.
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

    /// Returns the prefetcher with a function that it calls on the caller's thread while a read is waited
    /// for, several times a second.
    #[must_use]
    pub fn while_waiting(self, call: impl Fn() + 'static) -> Self {
        Self { on_wait: Some(Box::new(call)), ..self }
    }

    /// Returns the most micro-batches that a prefetcher of `depth` keeps in memory.
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

    /// Returns a micro-batch when it has been read, and requests those of `next`.
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

    /// Requests those of `ids` that are not requested yet; `ids` begin with those that are.
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

    /// Waits for the answer to the oldest request, which is `id`; `None` if no thread answers.
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
                let of = file.map_or(String::new(), |file| format!(" of {}", file.display()));
                tracing::warn!("reading {id}{of} has taken {} s so far", began.elapsed().as_secs());
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
    /// Starts a thread that reads; `None` if the system refuses one.
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
