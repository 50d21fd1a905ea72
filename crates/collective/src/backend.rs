//! The interface of a process group's backend: how one transport moves device regions.

use device::{Device, Region, StreamKind};

use crate::call::{Call, Signature};
use crate::caller::Caller;
use crate::collective::{Collective, Reach};
use crate::error::Result;
use crate::peer_access::{PeerAccess, PeerAccessOptions};
use crate::split::SplitGroup;

/// Transport of one process group: moves and sums device regions among its ranks. The
/// [`ProcessGroup`](crate::ProcessGroup) has already checked, numbered and counted each call.
///
/// Calls enqueue work on a stream and may return before it is done. Host transports finish before they
/// return.
pub trait GroupBackend {
    /// Kind of memory that the backend moves.
    fn reach(&self) -> Reach;

    /// Enqueues a checked collective.
    ///
    /// # Errors
    /// A rank or the transport failed, or ranks make different calls.
    fn enqueue(&mut self, call: &GroupCall<'_>) -> Result<()>;

    /// Returns whether the backend implements this collective; all ranks get the same answer. By default,
    /// every collective except those in shared memory.
    fn supports(&self, collective: &Collective<Region<'_>>) -> bool {
        !collective.is_shared()
    }

    /// Waits on the host until this group's work on `stream` is done, a peer fails, or the deadline passes.
    ///
    /// # Errors
    /// The failure or the deadline.
    fn synchronize(&mut self, caller: Caller, stream: StreamKind) -> Result<()>;

    /// Splits the ranks into `groups` and returns the backend of this rank's group, `own`.
    ///
    /// # Errors
    /// Ranks passed different groups, or a rank or the transport failed.
    fn split(
        &mut self,
        caller: Caller,
        groups: &[Vec<usize>],
        own: &SplitGroup,
    ) -> Result<Box<dyn GroupBackend>>;

    /// Returns whether devices must be connected. If false, [`GroupBackend::warm_up`] and
    /// [`GroupBackend::share`] do nothing.
    fn connects(&self) -> bool {
        false
    }

    /// Connects the devices for these collectives ahead of their first use.
    fn warm_up(&mut self, _caller: Caller, _uses: &[Collective<()>]) -> Result<()> {
        Ok(())
    }

    /// Maps these regions into the other ranks' address spaces, if their devices support it.
    fn share(
        &mut self,
        _caller: Caller,
        _regions: &[Region<'_>],
        _options: PeerAccessOptions,
    ) -> Result<PeerAccess> {
        Ok(PeerAccess::Denied("this transport does not support it".to_owned()))
    }

    /// The device that captures or logs this group's calls, if any.
    fn device(&self) -> Option<Device> {
        None
    }

    /// Sets the device whose log records this group's calls. Only backends without a device of their own use
    /// it.
    fn log_on(&mut self, _device: &Device) {}
}

/// One call of a process group, as passed to the backend.
#[derive(Debug)]
pub struct GroupCall<'a> {
    /// The calling rank and the call's identity.
    pub caller: Caller,
    /// The collective, with checked operands.
    pub collective: &'a Collective<Region<'a>>,
    /// Messages to single peers, in the order they are sent.
    pub sends: Vec<NumberedMessage<'a>>,
    /// Messages from single peers, in the order they are received.
    pub receives: Vec<NumberedMessage<'a>>,
    /// The stream on which the work is enqueued.
    pub stream: StreamKind,
}

/// A message to or from one peer, numbered per pair of ranks and direction.
#[derive(Clone, Copy, Debug)]
pub struct NumberedMessage<'a> {
    /// The other rank.
    pub peer: usize,
    /// The values to send, or the memory to receive them.
    pub region: Region<'a>,
    /// Identity of the message, with its number.
    pub call: Call,
}

impl NumberedMessage<'_> {
    /// Returns the message's signature, without bytes.
    pub(crate) fn signature(&self) -> Signature {
        Signature::new(self.call)
    }
}
