//! Logical streams.

/// The six queues of work of every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamKind {
    /// Forward, backward and optimizer.
    Compute,
    /// Reduction of gradients over ranks, and distribution of updated weights.
    Reduce,
    /// Transfers between stages.
    Transfer,
    /// Exchanges within layers, between ranks that share layers or sequences.
    Exchange,
    /// Copies from the host while the device computes: of micro-batches, and of what is offloaded.
    Input,
    /// Copies to the host while the device computes: of the state for checkpoints, and of what is offloaded.
    Snapshot,
}

impl StreamKind {
    /// All streams.
    pub const ALL: [StreamKind; 6] = [
        StreamKind::Compute,
        StreamKind::Reduce,
        StreamKind::Transfer,
        StreamKind::Exchange,
        StreamKind::Input,
        StreamKind::Snapshot,
    ];

    /// The allocator's handle: a fixed number, so that ties do not depend on the driver's stream handles.
    pub const fn handle(self) -> memory::Stream {
        memory::Stream(match self {
            StreamKind::Compute => 0,
            StreamKind::Reduce => 1,
            StreamKind::Transfer => 2,
            StreamKind::Input => 3,
            StreamKind::Snapshot => 4,
            StreamKind::Exchange => 5,
        })
    }
}
