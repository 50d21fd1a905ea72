//! Identity of calls: operation, sequence number and operands.

use std::fmt;

use device::DType;

/// An operation among ranks, on either plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Copies the root's values to all ranks.
    Broadcast,
    /// Collects every rank's message on one rank.
    Gather,
    /// Collects every rank's values on all ranks.
    AllGather,
    /// Sums over ranks; every rank gets the whole sum.
    AllReduce,
    /// Sums over ranks; each rank gets a shard of the sum.
    ReduceScatter,
    /// Sends values to one peer.
    Send,
    /// Receives values from one peer.
    Receive,
    /// Runs several sends and receives as one call.
    Exchange,
    /// Blocks every rank until all ranks have arrived.
    Barrier,
    /// Splits ranks into groups.
    Split,
    /// Makes the host wait for a stream.
    Synchronize,
    /// Connects the ranks' devices.
    Connect,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Operation; 12] = [
        Operation::Broadcast,
        Operation::Gather,
        Operation::AllGather,
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::Send,
        Operation::Receive,
        Operation::Exchange,
        Operation::Barrier,
        Operation::Split,
        Operation::Synchronize,
        Operation::Connect,
    ];

    /// Name used in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Broadcast => "broadcast",
            Operation::Gather => "gather",
            Operation::AllGather => "all-gather",
            Operation::AllReduce => "all-reduce",
            Operation::ReduceScatter => "reduce-scatter",
            Operation::Send => "send",
            Operation::Receive => "receive",
            Operation::Exchange => "exchange",
            Operation::Barrier => "barrier",
            Operation::Split => "split",
            Operation::Synchronize => "synchronize",
            Operation::Connect => "connect",
        }
    }

    /// Returns whether the operation is between two ranks; its sequence numbers then count that pair's
    /// messages.
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, Operation::Send | Operation::Receive | Operation::Exchange)
    }
}

/// The plane of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plane {
    /// Small host messages.
    Control,
    /// Device regions.
    Data,
}

/// The identity of a call, as errors show it.
///
/// Collectives are numbered from 0 in the order in which a rank calls them, per plane and per group. Sends
/// and receives are numbered per peer and direction; an exchange has the number of its first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The plane.
    pub plane: Plane,
    /// The operation.
    pub operation: Operation,
    /// Sequence number, from 0.
    pub sequence: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plane = if self.plane == Plane::Control { "control " } else { "" };
        write!(f, "{plane}{} #{}", self.operation.name(), self.sequence)
    }
}

/// A call with the properties on which all its ranks must agree.
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
