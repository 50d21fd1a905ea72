//! Sizes and directions of scans of affine maps.

/// Sizes of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) pieces: usize,
    /// States of a piece.
    pub(super) states: usize,
    /// Rows of a state.
    pub(super) rows: usize,
    /// Columns of a state.
    pub(super) columns: usize,
}

/// Order of the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    /// From the last piece to the first, with transposed maps.
    Backward,
}
