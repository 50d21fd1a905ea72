//! The interface of a host transport: message queues between each pair of ranks. Payloads, sums, matching and
//! deadlines are implemented once for all transports, in `host`.

use std::time::{Duration, Instant};

use crate::call::{Call, Signature};
use crate::control::Watch;
use crate::error::Failure;
use crate::payload::Payload;

/// A message: one payload of a call's operand.
#[derive(Debug)]
pub(crate) struct Message {
    /// Signature of the sender's call.
    pub(crate) signature: Signature,
    /// The bytes; empty on Meta.
    pub(crate) payload: Payload,
}

/// Error: the peer has ended and no longer sends or receives.
#[derive(Debug)]
pub(crate) struct Closed;

/// A rank for which the other ranks of a call are waiting.
#[derive(Debug)]
pub(crate) enum Absent {
    /// A rank that has not begun the call, or does not answer.
    Silent(usize),
    /// A rank that waits in another call; reported by transports whose [`Link::begin`] cannot detect it.
    Elsewhere { rank: usize, mine: Signature, theirs: Signature },
}

/// Bounded first-in-first-out message queues to and from every other rank of a group.
pub(crate) trait Link: Sized + 'static {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world_size(&self) -> usize;

    /// The world number of a rank of the group.
    fn world_rank(&self, rank: usize) -> usize;

    /// Longest allowed silence of a peer.
    fn timeout(&self) -> Duration;

    /// Appends a message to the queue to a peer; returns it if the queue is full.
    fn try_send(&mut self, to: usize, message: Message) -> Result<Option<Message>, Closed>;

    /// Takes the next message from a peer's queue.
    fn try_receive(&mut self, from: usize) -> Result<Option<Message>, Closed>;

    /// Returns whether all messages to a peer will arrive without further calls of this rank.
    fn sent(&mut self, _to: usize) -> Result<bool, Closed> {
        Ok(true)
    }

    /// Blocks until a queue to or from these peers is ready, a peer has ended, a rank has failed, or the
    /// deadline has passed. May return earlier.
    fn wait(&mut self, sends: &[usize], receives: &[usize], deadline: Instant);

    /// Tells the user which peer is being waited for, if the transport supports it.
    fn slow(&self, _peer: usize) {}

    /// The first failure in the world.
    fn failure(&self) -> Option<Failure>;

    /// Announces to all ranks that this one fails.
    fn fail(&mut self, reason: &str);

    /// Announces the failure of another rank that cannot announce it itself.
    fn lost(&mut self, _rank: usize, _reason: &str) {}

    /// Returns a handle to [`Link::failure`] that outlives the borrow of the link.
    fn watch(&self) -> Watch;

    /// Records that this rank begins a collective. If the transport knows that a rank began another call with
    /// the same number, returns that rank and its signature; other transports detect this from messages.
    fn begin(&mut self, signature: &Signature) -> Result<(), (usize, Signature)>;

    /// Returns the rank that has kept a call waiting for a whole timeout, if known.
    fn absent(&self, call: Call) -> Option<Absent>;

    /// Creates the link of a group of some of these ranks, including this rank. `sequence` is the number of
    /// the split.
    fn split(&mut self, sequence: u64, group: usize, members: &[usize]) -> Self;
}
