//! The interface of a transport between processes for what is outside their calls.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::processes::process::Processes;
use crate::processes::wire::Notice;

/// A transport between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP connections between every two ranks.
    Tcp,
    /// An MPI library.
    Mpi {
        /// Name and version of the library.
        library: String,
    },
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "TCP",
            Transport::Mpi { library } => library,
        })
    }
}

/// The carrier of notices between the ranks. No function but `idle` waits.
pub(crate) trait Post {
    /// The transport between the ranks.
    fn transport(&self) -> Transport;

    /// Takes the next notice that has arrived, and lets what is being sent progress.
    ///
    /// # Errors
    /// The transport failed, in words.
    fn receive(&self) -> Result<Option<Notice>, String>;

    /// Starts to send a notice. A rank that cannot be notified is later found to be silent or gone.
    fn send(&self, to: usize, notice: &Notice);

    /// Returns whether every notice has been sent to a rank that is alive.
    fn is_sent(&self) -> bool;

    /// Returns a rank whose connection has closed, among those for which `is_awaited`.
    fn closed(&self, _is_awaited: &dyn Fn(usize) -> bool) -> Option<usize> {
        None
    }

    /// Yields the processor until something arrives or `deadline`, for longer the more `turns` in a row had
    /// no progress; it may return earlier.
    fn idle(&self, turns: u32, deadline: Instant);

    /// Returns a limit on the time in which the transport ends, to be dropped when it has.
    fn ending(&self, _timeout: Duration, _processes: Arc<Processes>) -> Box<dyn Any> {
        Box::new(())
    }

    /// Ends the transport; `finished`: all ranks have made all their calls.
    fn end(&self, _finished: bool) {}
}
