//! What a host transport must offer: queues of messages between each pair of ranks. Everything else —
//! payloads, sums, matching, deadlines — is `host`'s, once for all transports.

use std::time::{Duration, Instant};

use crate::call::{Call, Signature};
use crate::control::Watch;
use crate::error::Failure;
use crate::payload::Payload;

/// One message: part of the operand of a call.
#[derive(Debug)]
pub(crate) struct Message {
    /// What the sender is in.
    pub(crate) signature: Signature,
    /// The bytes; none from a Meta device.
    pub(crate) payload: Payload,
}

/// The peer has ended and will neither send nor receive any more.
#[derive(Debug)]
pub(crate) struct Closed;

/// A rank that does not take part in a call that others wait in.
#[derive(Debug)]
pub(crate) enum Absent {
    /// It has not begun the call, or gives no sign.
    Silent(usize),
    /// It waits in another call; for transports whose [`Link::begin`] does not tell.
    #[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "threads are told when a call begins"))]
    Elsewhere { rank: usize, mine: Signature, theirs: Signature },
}

/// Bounded queues of messages, first in, first out, from and to every other rank of a group.
pub(crate) trait Link: Sized + 'static {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn world_size(&self) -> usize;

    /// The number in the world of a rank of the group.
    fn world_rank(&self, rank: usize) -> usize;

    /// How long a peer may be silent.
    fn timeout(&self) -> Duration;

    /// Puts a message into the queue to a peer, or hands it back where that is full.
    fn try_send(&mut self, to: usize, message: Message) -> Result<Option<Message>, Closed>;

    /// Takes the next message out of the queue from a peer.
    fn try_receive(&mut self, from: usize) -> Result<Option<Message>, Closed>;

    /// Whether all messages to a peer are on their way without further help of this rank. Queues in memory
    /// are.
    fn sent(&mut self, _to: usize) -> Result<bool, Closed> {
        Ok(true)
    }

    /// Returns when one of these peers can be sent to or received from or has ended, when a rank has failed,
    /// at the deadline, or earlier.
    fn wait(&mut self, sends: &[usize], receives: &[usize], deadline: Instant);

    /// The first failure in the world.
    fn failure(&self) -> Option<Failure>;

    /// Tells the world that this rank ends.
    fn fail(&mut self, reason: &str);

    /// Tells the world that another rank is lost, where it would not hear it of that one's own.
    fn lost(&mut self, _rank: usize, _reason: &str) {}

    /// [`Link::failure`] as a value of its own.
    fn watch(&self) -> Watch;

    /// Says that this rank begins a collective. A transport that knows already that another rank began a
    /// different one in its place answers with that rank and its signature; others find out by messages.
    fn begin(&mut self, signature: &Signature) -> Result<(), (usize, Signature)>;

    /// Who of the group is to blame that a call of this rank has not ended within the timeout, where that is
    /// known.
    fn absent(&self, call: Call) -> Option<Absent>;

    /// The link of a group of some of these ranks, of which this is one; `sequence` is the split's.
    fn split(&mut self, sequence: u64, group: usize, members: &[usize]) -> Self;
}
