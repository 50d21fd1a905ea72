//! Borrowed regions of a buffer.

/// Regions of one buffer that are currently borrowed by guards.
#[derive(Debug, Default)]
pub(crate) struct Borrows(pub(crate) Vec<Borrow>);

/// Bytes `start..end` of a buffer, borrowed for reading or writing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Borrow {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) write: bool,
}

impl Borrow {
    /// Returns whether two borrows overlap and one of them writes.
    pub(crate) fn conflicts(&self, other: &Borrow) -> bool {
        self.start < other.end && other.start < self.end && (self.write || other.write)
    }
}
