//! The position of one block in the matrix and in the packed rows.

use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    /// The block's number, which selects its columns.
    pub(super) index: usize,
    /// The block's rows in the matrix.
    pub(super) range: &'a Range<usize>,
    /// Packed rows before those of the block.
    pub(super) before: usize,
    pub(super) width: usize,
}
