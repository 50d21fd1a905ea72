//! Logical streams.

/// The three queues of work that every device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamKind {
    /// Forward, backward and optimizer.
    Compute,
    /// Reduction of gradients over ranks, and new weights from one to another.
    Reduce,
    /// Host copies and transfers between stages.
    Transfer,
}

impl StreamKind {
    /// All of them.
    pub const ALL: [StreamKind; 3] = [StreamKind::Compute, StreamKind::Reduce, StreamKind::Transfer];

    /// The allocator's handle: stable, so that ties never depend on where the driver put a stream.
    pub const fn handle(self) -> memory::Stream {
        memory::Stream(match self {
            StreamKind::Compute => 0,
            StreamKind::Reduce => 1,
            StreamKind::Transfer => 2,
        })
    }
}
