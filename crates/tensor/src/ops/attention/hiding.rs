//! Attention masks on the host, and the tiles that they hide entirely.

use super::geometry::Geometry;
use super::tile::BLOCK;
use crate::ops::dropout::Mask;

/// Consecutive positions of one sequence, for one query head.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) batch: usize,
    pub(super) head: usize,
    /// The first position in the sequence.
    pub(super) first: usize,
    pub(super) len: usize,
}

/// Document starts and sinks: masks besides the causal one and the window.
#[derive(Clone, Copy)]
pub(super) struct Hiding<'a> {
    /// Position in its sequence at which each token's document begins.
    pub(super) documents: Option<&'a [u32]>,
    pub(super) dropout: Option<Mask>,
    /// The sink of every query head.
    pub(super) sinks: Option<&'a [f32]>,
}

impl Hiding<'_> {
    /// Returns the first key that a row of the block sees: the start of its document or of its window.
    #[inline(always)]
    fn first_key(&self, geometry: Geometry, block: Block, row: usize) -> usize {
        let token = block.batch * geometry.time + block.first - geometry.first + row;
        let first = geometry.first as u32;
        let document = self.documents.map_or(0, |documents| documents[token].wrapping_add(first) as usize);
        document.max(geometry.settings.window_start(block.first + row))
    }

    /// Returns the index of the first tile of keys that any of `queries` sees.
    #[inline(always)]
    pub(super) fn first_tile(&self, geometry: Geometry, queries: Block) -> usize {
        self.first_key(geometry, queries, 0) / BLOCK
    }

    /// Returns how many of `keys` come before the first key that the query in `row` of its block sees.
    #[inline(always)]
    pub(super) fn before(&self, geometry: Geometry, queries: Block, row: usize, keys: Block) -> usize {
        self.first_key(geometry, queries, row).saturating_sub(keys.first).min(keys.len)
    }

    /// Returns whether no query of this block or a later one sees any of `keys`.
    #[inline(always)]
    pub(super) fn is_beyond(&self, geometry: Geometry, queries: Block, keys: Block) -> bool {
        self.first_key(geometry, queries, 0) >= keys.first + keys.len
    }
}
