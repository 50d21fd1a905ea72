//! Gates in front of groups of timed calls. The device begins a group once the host has enqueued all of it.
//! So it waits for the host only between groups, outside every call's time.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use cudarc::driver::sys;
use system::threads;

use super::error::Result;
use super::signals::{self, SignalPage};

/// Number of calls in a group, few enough for the queue of a stream, in which a call takes several entries.
const GROUP: u32 = 64;
/// Time after which a gate opens even if its group is incomplete, because the host may be waiting for one of
/// its calls.
const PATIENCE: Duration = Duration::from_millis(100);

/// The gates in front of one stream's groups of calls.
#[derive(Debug)]
pub(super) struct Gates {
    /// Page with the number of the last open gate.
    page: Arc<SignalPage>,
    stream: sys::CUstream,
    calls: Cell<u32>,
    last: Cell<u32>,
    stop: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
}

impl Gates {
    /// Creates gates on `stream`, whose numbers are written to `page`.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(super) fn new(page: SignalPage, stream: sys::CUstream) -> std::io::Result<Self> {
        let page = Arc::new(page);
        let (stop, stopped) = channel::<()>();
        let watched = Arc::clone(&page);
        let open_late_ones = move || {
            let mut before = watched.load(0);
            while stopped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                if watched.load(0) == before {
                    watched.store(0, before + 1);
                }
                before = watched.load(0);
            }
        };
        let watch = threads::spawn("gates", open_late_ones)?;
        let calls = Cell::new(0);
        let last = Cell::new(0);
        Ok(Gates { page, stream, calls, last, stop: Some(stop), watch: Some(watch) })
    }

    /// Enqueues a gate on `stream` if the next call begins a group, and opens the previous gate.
    pub(super) fn before_call(&self, stream: sys::CUstream) -> Result<()> {
        if stream != self.stream {
            return Ok(());
        }
        let calls = self.calls.replace(self.calls.get() + 1);
        if !calls.is_multiple_of(GROUP) {
            return Ok(());
        }
        let gate = self.last.get() + 1;
        signals::enqueue(stream, &[], &[(self.page.word(0), gate)])?;
        self.page.store(0, self.last.replace(gate));
        Ok(())
    }

    pub(super) fn open(&self) {
        self.page.store(0, self.last.get());
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        self.open();
        drop(self.stop.take());
        if let Some(watch) = self.watch.take() {
            // It only counts.
            let _ = watch.join();
        }
    }
}
