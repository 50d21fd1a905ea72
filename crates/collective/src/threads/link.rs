//! The message queues of a rank that is a thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Select, TryRecvError, TrySendError};
use device::SharedEvent;

use crate::call::{Call, Signature};
use crate::control::Watch;
use crate::error::Failure;
use crate::link::{Absent, Closed, Link, Message};
use crate::shared_gpu::offers::Offers;
use crate::threads::mesh::Mesh;
use crate::threads::signal::Signal;
use crate::threads::world::ThreadLiveness;

/// Queues of messages between threads.
#[derive(Debug)]
pub(crate) struct ThreadLink {
    mesh: Arc<Mesh>,
    rank: usize,
    timeout: Duration,
}

impl ThreadLink {
    pub(crate) fn new(mesh: Arc<Mesh>, rank: usize, timeout: Duration) -> Self {
        ThreadLink { mesh, rank, timeout }
    }

    /// The open offers of memory of a GPU that the process's ranks share.
    pub(crate) fn offers(&self) -> Arc<Offers<SharedEvent>> {
        Arc::clone(&self.mesh.world.offers)
    }

    fn ended(&self, rank: usize) -> &Signal {
        self.mesh.world.ended(self.mesh.members[rank])
    }
}

impl Link for ThreadLink {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.mesh.members.len()
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.mesh.members[rank]
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_send(&mut self, to: usize, message: Message) -> Result<Option<Message>, Closed> {
        match self.mesh.sender(self.rank, to).try_send(message) {
            Ok(()) => Ok(None),
            Err(TrySendError::Full(_)) if self.ended(to).is_raised() => Err(Closed),
            Err(TrySendError::Full(message)) => Ok(Some(message)),
            Err(TrySendError::Disconnected(_)) => Err(Closed),
        }
    }

    fn try_receive(&mut self, from: usize) -> Result<Option<Message>, Closed> {
        let queue = self.mesh.receiver(from, self.rank);
        match queue.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Disconnected) => Err(Closed),
            // The peer's last message may have arrived between the check of the queue and the peer's end.
            Err(TryRecvError::Empty) if self.ended(from).is_raised() => {
                queue.try_recv().map(Some).map_err(|_| Closed)
            }
            Err(TryRecvError::Empty) => Ok(None),
        }
    }

    fn wait(&mut self, sends: &[usize], receives: &[usize], deadline: Instant) {
        let mut select = Select::new();
        for to in sends {
            select.send(self.mesh.sender(self.rank, *to));
        }
        for from in receives {
            select.recv(self.mesh.receiver(*from, self.rank));
        }
        for peer in sends.iter().chain(receives) {
            select.recv(self.ended(*peer).receiver());
        }
        select.recv(self.mesh.world.failed().receiver());
        // It does not matter which queue is ready: the caller checks all of them.
        let _ = select.ready_deadline(deadline);
    }

    fn failure(&self) -> Option<Failure> {
        self.mesh.world.failure()
    }

    fn fail(&mut self, reason: &str) {
        self.mesh.world.fail(self.mesh.members[self.rank], reason);
    }

    fn watch(&self) -> Watch {
        let world = Arc::clone(&self.mesh.world);
        Watch::over(ThreadLiveness { world, rank: self.mesh.members[self.rank] })
    }

    fn begin(&mut self, signature: &Signature) -> Result<(), (usize, Signature)> {
        self.mesh.begin(self.rank, signature)
    }

    fn absent(&self, call: Call) -> Option<Absent> {
        if call.kind.is_point_to_point() {
            return None;
        }
        self.mesh.absent(call.sequence).map(Absent::Silent)
    }

    fn split(&mut self, sequence: u64, group: usize, members: &[usize]) -> Self {
        let rank = members.iter().position(|member| *member == self.rank).unwrap_or_default();
        ThreadLink::new(self.mesh.split(sequence, group, members), rank, self.timeout)
    }
}
