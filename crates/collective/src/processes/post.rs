//! The interface of a transport between processes for notices outside of calls.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::processes::process::Processes;
use crate::processes::wire::Notice;

/// A transport between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP connections between every pair of ranks.
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

/// Sends and receives notices between ranks. Only `idle` blocks.
pub(crate) trait Post {
    /// The transport between the ranks.
    fn transport(&self) -> Transport;

    /// Returns the next notice that has arrived, and advances pending sends.
    ///
    /// # Errors
    /// Description of a failure of the transport.
    fn receive(&self) -> Result<Option<Notice>, String>;

    /// Starts to send a notice. A rank that cannot be reached is later found to be silent or gone.
    fn send(&self, to: usize, notice: &Notice);

    /// Returns whether all notices to living ranks have been sent.
    fn is_sent(&self) -> bool;

    /// Returns a rank whose connection has closed, among the ranks for which `is_awaited` is true.
    fn closed(&self, _is_awaited: &dyn Fn(usize) -> bool) -> Option<usize> {
        None
    }

    /// Yields the processor until something arrives or `deadline` passes, and may return earlier. The more
    /// `idle_rounds` in a row made no progress, the longer it yields.
    fn idle(&self, idle_rounds: u32, deadline: Instant);

    /// Returns a time limit for ending the transport, to be dropped once it has ended.
    fn ending(&self, _timeout: Duration, _processes: Arc<Processes>) -> Box<dyn Any> {
        Box::new(())
    }

    /// Ends the transport. `finished`: all ranks have made all their calls.
    fn end(&self, _finished: bool) {}
}
