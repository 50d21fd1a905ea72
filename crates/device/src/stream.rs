//! Logical streams.

/// One of the six streams of every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamKind {
    /// Forward, backward and optimizer work.
    Compute,
    /// Reduction of gradients over ranks, and distribution of updated weights.
    Reduce,
    /// Sends and receives between pipeline stages.
    Transfer,
    /// Collectives within layers, between ranks that share layers or sequences.
    Exchange,
    /// Copies from the host beside compute: micro-batches and offloaded tensors.
    Input,
    /// Copies to the host beside compute: state for checkpoints and offloaded tensors.
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

    /// Returns the allocator's handle of the stream: a fixed number, so that the order of blocks does not
    /// depend on the driver's stream handles.
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
