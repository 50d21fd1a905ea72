//! The interface of a host transport: queues of messages between each pair of ranks. Payloads, sums, matching
//! and deadlines are implemented once for all transports, in `host`.

use std::time::{Duration, Instant};

use crate::call::{Call, Signature};
use crate::control::Watch;
use crate::error::Failure;
use crate::payload::Payload;

/// A message: part of a call's operand.
#[derive(Debug)]
pub(crate) struct Message {
    /// The sender's call.
    pub(crate) signature: Signature,
    /// The bytes; empty from a Meta device.
    pub(crate) payload: Payload,
}

/// Error: the peer has ended, and neither sends nor receives any more.
#[derive(Debug)]
pub(crate) struct Closed;

/// A rank that is missing from a call in which others wait.
#[derive(Debug)]
pub(crate) enum Absent {
    /// The rank has not begun the call, or does not answer.
    Silent(usize),
    /// The rank waits in another call; reported by transports whose [`Link::begin`] cannot detect it.
    Elsewhere { rank: usize, mine: Signature, theirs: Signature },
}

/// Bounded queues of messages, first in, first out, from and to every other rank of a group.
pub(crate) trait Link: Sized + 'static {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world_size(&self) -> usize;

    /// The world number of a rank of the group.
    fn world_rank(&self, rank: usize) -> usize;

    /// Longest time that a peer may be silent.
    fn timeout(&self) -> Duration;

    /// Adds a message to the queue to a peer, or returns it if the queue is full.
    fn try_send(&mut self, to: usize, message: Message) -> Result<Option<Message>, Closed>;

    /// Takes the next message from the queue from a peer.
    fn try_receive(&mut self, from: usize) -> Result<Option<Message>, Closed>;

    /// Returns whether all messages to a peer will arrive without further calls of this rank, as with queues
    /// in memory.
    fn sent(&mut self, _to: usize) -> Result<bool, Closed> {
        Ok(true)
    }

    /// Returns once one of these peers can be sent to or received from or has ended, a rank has failed, or
    /// the deadline has passed; it may return earlier.
    fn wait(&mut self, sends: &[usize], receives: &[usize], deadline: Instant);

    /// Tells the user that a peer has been waited for, if the transport does.
    fn slow(&self, _peer: usize) {}

    /// The first failure in the world.
    fn failure(&self) -> Option<Failure>;

    /// Announces to all ranks that this one fails.
    fn fail(&mut self, reason: &str);

    /// Announces that another rank is lost, if that rank cannot announce it itself.
    fn lost(&mut self, _rank: usize, _reason: &str) {}

    /// Returns a watch for [`Link::failure`] that outlives the borrow of the link.
    fn watch(&self) -> Watch;

    /// Records that this rank begins a collective. A transport that knows of a rank which began another call
    /// with the same number returns that rank and its signature; other transports detect this by messages.
    fn begin(&mut self, signature: &Signature) -> Result<(), (usize, Signature)>;

    /// Returns the rank of the group that a call has waited for during a whole timeout, if known.
    fn absent(&self, call: Call) -> Option<Absent>;

    /// Creates the link of a group of some of these ranks, including this one. `sequence` is the number of
    /// the split.
    fn split(&mut self, sequence: u64, group: usize, members: &[usize]) -> Self;
}
