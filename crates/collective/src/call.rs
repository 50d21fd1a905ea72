//! Identity of calls: kind, sequence number and operands.

use std::fmt;

use device::DType;

system::names! {
    /// Kind of a call among ranks: a collective, a transfer, or group management.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum CallKind {
        /// Copies the root's values to all ranks.
        Broadcast = "broadcast",
        /// Collects every rank's message on one rank.
        Gather = "gather",
        /// Collects every rank's values on all ranks.
        AllGather = "all-gather",
        /// Sums over ranks; every rank gets the whole sum.
        AllReduce = "all-reduce",
        /// Sums over ranks; each rank gets a shard of the sum.
        ReduceScatter = "reduce-scatter",
        /// Sends values to one peer.
        Send = "send",
        /// Receives values from one peer.
        Receive = "receive",
        /// Runs several sends and receives as one call.
        Exchange = "exchange",
        /// Blocks every rank until all ranks have arrived.
        Barrier = "barrier",
        /// Splits ranks into groups.
        Split = "split",
        /// Makes the host wait for a stream.
        Synchronize = "synchronize",
        /// Connects the ranks' devices.
        Connect = "connect",
    }
}

impl CallKind {
    /// Returns whether the call is between two ranks; its sequence number is then per pair of ranks.
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, CallKind::Send | CallKind::Receive | CallKind::Exchange)
    }
}

/// The channel on which a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Small messages between hosts ([`ControlChannel`](crate::ControlChannel)).
    Control,
    /// Device regions ([`ProcessGroup`](crate::ProcessGroup)).
    Data,
}

/// Identity of a call, as shown in errors.
///
/// Collectives are numbered from 0 in call order, separately for each channel and group. Sends and receives
/// are numbered per peer and direction. An exchange has the number of its first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The channel.
    pub channel: Channel,
    /// The kind.
    pub kind: CallKind,
    /// Sequence number, from 0.
    pub sequence: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channel = if self.channel == Channel::Control { "control " } else { "" };
        write!(f, "{channel}{} #{}", self.kind.name(), self.sequence)
    }
}

/// A call's properties that must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The call.
    pub call: Call,
    /// Bytes of the operand on every rank; `None` if ranks may differ.
    pub bytes: Option<u64>,
    /// Element type, for sums.
    pub dtype: Option<DType>,
    /// The rank that sends to, or receives from, all others.
    pub root: Option<usize>,
}

impl Signature {
    /// Returns the signature of a call without operands.
    pub const fn new(call: Call) -> Self {
        Signature { call, bytes: None, dtype: None, root: None }
    }

    /// Adds an operand of `bytes` bytes.
    pub const fn bytes(self, bytes: usize) -> Self {
        Signature { bytes: Some(bytes as u64), ..self }
    }

    /// Adds the type of the elements.
    pub const fn dtype(self, dtype: DType) -> Self {
        Signature { dtype: Some(dtype), ..self }
    }

    /// Adds a root.
    pub const fn root(self, root: usize) -> Self {
        Signature { root: Some(root), ..self }
    }

    /// Returns whether two ranks with these signatures make the same call.
    pub fn agrees(&self, other: &Signature) -> bool {
        let bytes = match (self.bytes, other.bytes) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => true,
        };
        self.call == other.call && self.dtype == other.dtype && self.root == other.root && bytes
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.call)?;
        if let Some(root) = self.root {
            write!(f, " with root {root}")?;
        }
        if let Some(bytes) = self.bytes {
            write!(f, " of {bytes} bytes")?;
        }
        if let Some(dtype) = self.dtype {
            write!(f, " of {dtype}")?;
        }
        Ok(())
    }
}
