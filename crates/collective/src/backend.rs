//! The interface of a process group's backend: how one transport moves device regions.

use device::{Device, Region, StreamKind};

use crate::call::{Call, Signature};
use crate::caller::Caller;
use crate::collective::{Collective, Reach};
use crate::error::Result;
use crate::peer_access::{PeerAccess, PeerAccessOptions};
use crate::split::SplitGroup;

/// Moves and sums device regions among the ranks of one group, for a [`ProcessGroup`](crate::ProcessGroup),
/// which checks, numbers, counts, logs and repeats the calls.
///
/// Work is enqueued on a stream. A backend may return before it is done. Host transports are done on return.
pub trait GroupBackend {
    /// Memory that the backend moves.
    fn reach(&self) -> Reach;

    /// Enqueues a checked collective.
    ///
    /// # Errors
    /// A failure of a rank or of the transport, ranks that make different calls.
    fn enqueue(&mut self, call: &GroupCall<'_>) -> Result<()>;

    /// Returns whether the ranks can make this collective, the same on all of them. Backends without shared
    /// memory can make all that is not shared.
    fn supports(&self, collective: &Collective<Region<'_>>) -> bool {
        !collective.is_shared()
    }

    /// Waits on the host until this group's work on `stream` is done, a peer fails, or the deadline passes.
    ///
    /// # Errors
    /// The failure or the deadline.
    fn synchronize(&mut self, caller: Caller, stream: StreamKind) -> Result<()>;

    /// Splits the ranks into `groups`, of which `own` is this rank's, and returns its backend.
    ///
    /// # Errors
    /// Groups that differ between ranks; a failure of a rank or of the transport.
    fn split(
        &mut self,
        caller: Caller,
        groups: &[Vec<usize>],
        own: &SplitGroup,
    ) -> Result<Box<dyn GroupBackend>>;

    /// Returns whether the backend connects devices, so that [`GroupBackend::warm_up`] and
    /// [`GroupBackend::share`] are calls.
    fn connects(&self) -> bool {
        false
    }

    /// Makes the connections of these collectives.
    fn warm_up(&mut self, _caller: Caller, _uses: &[Collective<()>]) -> Result<()> {
        Ok(())
    }

    /// Gives the ranks access to these regions of each other's memory, if their devices can.
    fn share(
        &mut self,
        _caller: Caller,
        _regions: &[Region<'_>],
        _options: PeerAccessOptions,
    ) -> Result<PeerAccess> {
        Ok(PeerAccess::Denied("this transport does not support it".to_owned()))
    }

    /// The device that captures or logs the group's calls, if there is one.
    fn device(&self) -> Option<Device> {
        None
    }

    /// Gives a backend that only counts the device in whose log its calls belong. Other backends ignore it,
    /// since their own device has their work.
    fn log_on(&mut self, _device: &Device) {}
}

/// One call of a process group, on its way to the backend.
#[derive(Debug)]
pub struct GroupCall<'a> {
    /// The rank and the call.
    pub caller: Caller,
    /// The collective, with checked operands.
    pub collective: &'a Collective<Region<'a>>,
    /// Messages to single peers, in order.
    pub sends: Vec<NumberedMessage<'a>>,
    /// Messages from single peers, in order.
    pub receives: Vec<NumberedMessage<'a>>,
    /// The stream.
    pub stream: StreamKind,
}

/// A message between two ranks, with its number among those of the pair and direction.
#[derive(Clone, Copy, Debug)]
pub struct NumberedMessage<'a> {
    /// The other rank.
    pub peer: usize,
    /// The operand.
    pub region: Region<'a>,
    /// Number of the message.
    pub call: Call,
}

impl NumberedMessage<'_> {
    /// Returns the message's signature, without bytes.
    pub(crate) fn signature(&self) -> Signature {
        Signature::new(self.call)
    }
}
