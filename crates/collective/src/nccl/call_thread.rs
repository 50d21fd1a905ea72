//! A thread that makes a rank's NCCL calls, one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::fault::{Fault, Result};

/// Polling time after a call before the thread sleeps. Waking up takes as long as a call, and the next call
/// usually comes soon.
const SPIN: Duration = Duration::from_micros(100);
/// Stack size, as for NCCL's own threads.
const STACK_BYTES: usize = 8 << 20;

type Body = Box<dyn FnOnce() -> Result<()> + Send>;

/// A flag that is set during a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<AtomicBool>);

impl Busy {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, busy: bool) {
        self.0.store(busy, Ordering::Release);
    }
}

/// Handle of the thread. Passes calls to it and receives their results, without blocking.
#[derive(Debug)]
pub(super) struct CallThread {
    /// Sends calls to the thread; `None` while the handle is being dropped.
    calls: Option<Sender<Body>>,
    answers: Receiver<Result<()>>,
    busy: Busy,
    thread: Option<JoinHandle<()>>,
}

impl CallThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start() -> Result<Self> {
        let ((calls, taken), (answer, answers)) = (mpsc::channel::<Body>(), mpsc::channel());
        let busy = Busy::default();
        let theirs = busy.clone();
        let body = move || {
            while let Some(call) = next(&taken) {
                let message = call();
                theirs.set(false);
                // A rank that gave up no longer receives the result.
                let _ = answer.send(message);
            }
        };
        let started = Builder::new().name("nccl-calls".to_owned()).stack_size(STACK_BYTES).spawn(body);
        let thread = started.map_err(|error| Fault { code: 0, text: format!("a thread for it: {error}") })?;
        Ok(CallThread { calls: Some(calls), answers, busy, thread: Some(thread) })
    }

    /// Passes `call` to the thread. The previous call must have returned.
    pub(super) fn begin(&self, call: impl FnOnce() -> Result<()> + Send + 'static) {
        self.busy.set(true);
        // If the thread has ended, `answer` reports it.
        let _ = self.calls.as_ref().map(|calls| calls.send(Box::new(call)));
    }

    /// Returns the result of the last call; `None` while the call runs.
    pub(super) fn answer(&self) -> Option<Result<()>> {
        match self.answers.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(Fault { code: 0, text: "the thread that calls NCCL has ended".to_owned() }))
            }
        }
    }

    /// The flag that is set during a call.
    pub(super) fn busy(&self) -> &Busy {
        &self.busy
    }
}

impl Drop for CallThread {
    /// Ends the thread once it is idle, without waiting for a call that does not return.
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take().filter(|_| !self.busy.is_set()) {
            let _ = thread.join();
        }
    }
}

/// Returns the next call; `None` once the handle is dropped.
fn next(calls: &Receiver<Body>) -> Option<Body> {
    let began = Instant::now();
    while began.elapsed() < SPIN {
        match calls.try_recv() {
            Ok(call) => return Some(call),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    calls.recv().ok()
}
