//! The rows and columns of one adapter's block in the matrix of all adapters of a layer.

use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    /// Index of the block, which determines its columns in the matrix.
    pub(super) index: usize,
    /// The block's rows in the matrix.
    pub(super) range: &'a Range<usize>,
    /// Number of packed rows before the block.
    pub(super) before: usize,
    pub(super) width: usize,
}
