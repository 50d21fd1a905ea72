//! The message queues of a rank connected over TCP.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::call::{Call, Signature};
use crate::control::Watch;
use crate::error::Failure;
use crate::link::{Absent, Closed, Link, Message};
use crate::processes::{Shared, child};
use crate::tcp::wires::Wires;

/// Message queues of one group, over connections shared by all groups.
pub(crate) struct TcpLink {
    world: Rc<Shared>,
    wires: Rc<Wires>,
    rank: usize,
    /// World numbers of the ranks, by number in the group.
    members: Vec<usize>,
    context: u64,
}

impl TcpLink {
    pub(super) fn new(world: Rc<Shared>, wires: Rc<Wires>, members: Vec<usize>, context: u64) -> Self {
        let rank = members.iter().position(|member| *member == world.rank).unwrap_or_default();
        TcpLink { world, wires, rank, members, context }
    }
}

impl Link for TcpLink {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.members[rank]
    }

    fn timeout(&self) -> Duration {
        self.world.timeout.get()
    }

    fn try_send(&mut self, to: usize, message: Message) -> Result<Option<Message>, Closed> {
        if self.world.has_ended(self.members[to]) {
            return Err(Closed);
        }
        let left = self.wires.try_send(self.members[to], self.context, message);
        if left.is_none() {
            self.world.progressed();
        }
        Ok(left)
    }

    fn try_receive(&mut self, from: usize) -> Result<Option<Message>, Closed> {
        // Checked before the queue, so that the peer's last messages have arrived by then.
        let ended = self.world.has_ended(self.members[from]);
        match self.wires.take(self.members[from], self.context) {
            Some(message) => {
                self.world.progressed();
                Ok(Some(message))
            }
            None if ended => Err(Closed),
            None => Ok(None),
        }
    }

    fn sent(&mut self, to: usize) -> Result<bool, Closed> {
        let sent = self.wires.is_flushed(self.members[to]);
        if !sent && self.world.has_ended(self.members[to]) { Err(Closed) } else { Ok(sent) }
    }

    fn wait(&mut self, _sends: &[usize], _receives: &[usize], deadline: Instant) {
        self.world.idle(deadline);
    }

    fn slow(&self, peer: usize) {
        self.world.say_slow(self.members[peer]);
    }

    fn failure(&self) -> Option<Failure> {
        self.world.failure()
    }

    fn fail(&mut self, reason: &str) {
        self.world.fail(self.world.rank, reason);
    }

    fn lost(&mut self, rank: usize, reason: &str) {
        self.world.fail(rank, reason);
    }

    fn watch(&self) -> Watch {
        self.world.watch()
    }

    fn begin(&mut self, signature: &Signature) -> Result<(), (usize, Signature)> {
        self.world.begin(self.context, signature);
        Ok(())
    }

    fn absent(&self, call: Call) -> Option<Absent> {
        self.world.absent(&self.members, self.context, call)
    }

    fn split(&mut self, sequence: u64, group: usize, members: &[usize]) -> Self {
        let members = members.iter().map(|member| self.members[*member]).collect();
        let context = child(self.context, sequence, group);
        TcpLink::new(Rc::clone(&self.world), Rc::clone(&self.wires), members, context)
    }
}
