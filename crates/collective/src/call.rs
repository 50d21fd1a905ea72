//! Names of calls: which operation, the how-manieth, and with what operands.

use std::fmt;

use device::DType;

/// What ranks do together, on either plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// One rank's values to all.
    Broadcast,
    /// Every rank's message to one.
    Gather,
    /// Every rank's values to all.
    AllGather,
    /// The sum over ranks, to all.
    AllReduce,
    /// The sum over ranks, a shard to each.
    ReduceScatter,
    /// Values to one peer.
    Send,
    /// Values from one peer.
    Receive,
    /// Several sends and receives as one.
    Exchange,
    /// Nobody goes on before all have come.
    Barrier,
    /// Groups of ranks are made.
    Split,
    /// The host waits for a stream.
    Synchronize,
    /// The ranks' devices are connected.
    Connect,
}

impl Operation {
    /// Every operation, in the order of their numbers.
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

    /// The name in messages and tables.
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

    /// Whether it is between two ranks, so that its sequence number counts messages of that pair.
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, Operation::Send | Operation::Receive | Operation::Exchange)
    }
}

/// Which of the two planes a call is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plane {
    /// Small host messages.
    Control,
    /// Device regions.
    Data,
}

/// One call, as errors name it.
///
/// Collectives are numbered from 0 in the order in which a rank makes them, on each plane and in each
/// group. Sends and receives are numbered per peer and direction; an exchange has the number of its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The plane it is on.
    pub plane: Plane,
    /// What is done.
    pub operation: Operation,
    /// The how-manieth, from 0.
    pub sequence: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plane = if self.plane == Plane::Control { "control " } else { "" };
        write!(f, "{plane}{} #{}", self.operation.name(), self.sequence)
    }
}

/// A call with what all its ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The call.
    pub call: Call,
    /// Bytes of its operand on every rank; `None` where ranks may differ.
    pub bytes: Option<u64>,
    /// Element type of a sum.
    pub dtype: Option<DType>,
    /// The rank that sends to, or receives from, all others.
    pub root: Option<usize>,
}

impl Signature {
    /// A call without operands.
    pub const fn new(call: Call) -> Self {
        Signature { call, bytes: None, dtype: None, root: None }
    }

    /// The same with an operand of `bytes` bytes.
    pub const fn bytes(self, bytes: usize) -> Self {
        Signature { bytes: Some(bytes as u64), ..self }
    }

    /// The same over elements of `dtype`.
    pub const fn dtype(self, dtype: DType) -> Self {
        Signature { dtype: Some(dtype), ..self }
    }

    /// The same with a root.
    pub const fn root(self, root: usize) -> Self {
        Signature { root: Some(root), ..self }
    }

    /// Whether two ranks that say these do the same thing.
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
