//! The interface of a host transport: queues of messages between each pair of ranks. Payloads, sums, matching
//! and deadlines are in `host`, once for all transports.

use std::time::{Duration, Instant};

use crate::call::{Call, Signature};
use crate::control::Watch;
use crate::error::Failure;
use crate::payload::Payload;

/// A message: a part of the operand of a call.
#[derive(Debug)]
pub(crate) struct Message {
    /// The call of the sender.
    pub(crate) signature: Signature,
    /// The bytes; empty from a Meta device.
    pub(crate) payload: Payload,
}

/// The peer has ended, and neither sends nor receives any more.
#[derive(Debug)]
pub(crate) struct Closed;

/// A rank that is missing in a call in which others wait.
#[derive(Debug)]
pub(crate) enum Absent {
    /// The rank has not begun the call, or gives no sign.
    Silent(usize),
    /// The rank waits in another call; for transports whose [`Link::begin`] does not tell.
    #[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "threads are told when a call begins"))]
    Elsewhere { rank: usize, mine: Signature, theirs: Signature },
}

/// Bounded queues of messages, first in, first out, from and to every other rank of a group.
pub(crate) trait Link: Sized + 'static {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world_size(&self) -> usize;

    /// The number in the world of a rank of the group.
    fn world_rank(&self, rank: usize) -> usize;

    /// Time for which a peer may be silent.
    fn timeout(&self) -> Duration;

    /// Puts a message into the queue to a peer, or hands it back where that is full.
    fn try_send(&mut self, to: usize, message: Message) -> Result<Option<Message>, Closed>;

    /// Takes the next message out of the queue from a peer.
    fn try_receive(&mut self, from: usize) -> Result<Option<Message>, Closed>;

    /// Returns true if all messages to a peer are on their way without further help of this rank, as in
    /// queues in memory.
    fn sent(&mut self, _to: usize) -> Result<bool, Closed> {
        Ok(true)
    }

    /// Returns when one of these peers can be sent to or received from or has ended, when a rank has failed,
    /// at the deadline, or earlier.
    fn wait(&mut self, sends: &[usize], receives: &[usize], deadline: Instant);

    /// The first failure in the world.
    fn failure(&self) -> Option<Failure>;

    /// Tells all ranks that this one fails.
    fn fail(&mut self, reason: &str);

    /// Tells all ranks that another rank is lost, where that rank cannot tell them itself.
    fn lost(&mut self, _rank: usize, _reason: &str) {}

    /// A [`Link::failure`] that outlives the borrow of the link.
    fn watch(&self) -> Watch;

    /// Tells that this rank begins a collective. A transport that knows of a rank which began a different one
    /// in its place returns that rank and its signature; others find out by messages.
    fn begin(&mut self, signature: &Signature) -> Result<(), (usize, Signature)>;

    /// The rank of the group for which a call has waited a whole timeout, where that is known.
    fn absent(&self, call: Call) -> Option<Absent>;

    /// The link of a group of some of these ranks, of which this is one. `sequence` is the number of the
    /// split.
    fn split(&mut self, sequence: u64, group: usize, members: &[usize]) -> Self;
}
