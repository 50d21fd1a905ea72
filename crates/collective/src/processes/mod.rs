//! Ranks as processes: detects which have failed, ended or disappeared, over any transport.
//!
//! A transport implements [`Post`] for notices and [`Link`](crate::link::Link) for messages. Failures are
//! reported alike over MPI and over TCP.

mod post;
mod process;
mod shared;
mod wire;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::control::ControlChannel;
use crate::error::{CollectiveError, Failure};

pub(crate) use post::Post;
pub use post::Transport;
#[cfg(feature = "mpi")]
pub(crate) use process::parent_and_state;
pub use process::{Process, Processes};
pub(crate) use shared::Shared;
pub(crate) use wire::{CONTROL, DATA, HEADER_BYTES, Header, NOTICE_BYTES, Notice, child};

/// Errors while the ranks exchange their identities.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The exchange failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A rank's message about its process could not be decoded.
    #[error("rank {rank} sent an invalid description of its process")]
    Unknown {
        /// The rank.
        rank: usize,
    },
}

/// This process's membership in the job. Stays on the thread that started it.
pub struct World {
    shared: Rc<Shared>,
    local: (usize, usize),
    processes: Arc<Processes>,
}

impl World {
    /// Exchanges the process identities of all ranks. `local` returns this rank's number among the ranks of
    /// its host, and their count.
    ///
    /// # Errors
    /// The transport failed.
    pub(crate) fn join(
        shared: Rc<Shared>,
        control: &mut dyn ControlChannel,
        local: impl FnOnce(&Processes) -> (usize, usize),
    ) -> Result<Self, IdentityError> {
        let all = control.all_gather(&Process::own().encode())?;
        let process =
            |(rank, text): (usize, &Vec<u8>)| Process::decode(text).ok_or(IdentityError::Unknown { rank });
        let all = all.iter().enumerate().map(process).collect::<Result<_, _>>()?;
        let processes = Arc::new(Processes::new(shared.rank, all));
        let processes = Arc::clone(shared.processes.get_or_init(|| processes));
        Ok(World { shared, local: local(&processes), processes })
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// This rank's number among the ranks of its host, and the number of ranks there.
    pub fn local(&self) -> (usize, usize) {
        self.local
    }

    /// The processes of all ranks.
    pub fn processes(&self) -> Arc<Processes> {
        Arc::clone(&self.processes)
    }

    /// The transport between the ranks.
    pub fn transport(&self) -> Transport {
        self.shared.post.transport()
    }

    /// Names the task that all ranks must finish before their next calls, as in `open its data`. If a rank is
    /// slow, the user is shown its number and this task. `None` once training starts.
    pub fn set_doing(&self, doing: Option<&'static str>) {
        self.shared.doing.set(doing);
    }

    /// Sets the longest allowed silence of a peer, from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.timeout.set(timeout);
    }

    /// Announces to all ranks that this rank fails, with the reason, unless a rank failed before.
    pub fn fail(&self, reason: &str) {
        self.shared.fail(self.rank(), reason);
    }

    /// The first failure in the world known to this rank.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.failure()
    }

    /// Announces that this rank has made all its calls, waits for all other ranks to do the same, and ends
    /// the transport. Launchers treat a process that exits earlier as failed.
    ///
    /// # Errors
    /// A rank failed in the meantime.
    pub fn finish(self) -> Result<(), Failure> {
        self.processes.end();
        let World { shared, processes, .. } = self;
        shared.finish()?;
        let limit = shared.post.ending(shared.timeout.get(), processes);
        // Ends the transport.
        drop(shared);
        drop(limit);
        Ok(())
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(rank {} of {}, {})", self.rank(), self.size(), self.transport())
    }
}
