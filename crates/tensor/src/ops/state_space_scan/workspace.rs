//! Workspaces of scans on a GPU.

use device::Region;

use super::heads::{CHUNK, StateHeads};
use super::operands::Operands;
use crate::ops::gpu;
use crate::{DType, Tensor};

/// Widths of tiles of B and C that kernels on tensor cores are compiled for.
pub(super) const TILE_WIDTHS: [usize; 3] = [64, 128, 256];
/// Count of values per token that tiles are scaled with: `Scale` in `kernels/state_space_tiles.cuh`.
pub(super) const SCALES: usize = 4;
/// Count of products per token that gradients of time steps are computed from: `Product` in
/// `kernels/state_space_tiles_backward.cu`.
const PRODUCTS: usize = 4;
/// Columns of B and C whose gradients a block computes.
pub(super) const SLICE: usize = 128;
/// Maximum number of a group's heads over which a block adds the gradients of B and C; decides bits.
pub(super) const PART_HEADS: usize = 16;

/// Returns the width of tiles of the kernels on tensor cores; `None` if the kernels in f32 are used: for f32
/// operands, for other widths, and on GPUs with less shared memory.
pub(super) fn tile_width(operands: &Operands<'_>) -> Option<usize> {
    let StateHeads { width, states, .. } = operands.heads;
    let dtype = operands.xbc.dtype();
    let is_whole = |columns: usize| columns.is_multiple_of(gpu::lanes(dtype));
    let fits = dtype != DType::F32
        && is_whole(width)
        && is_whole(states)
        && gpu::has_memory_for_tiles(operands.xbc.device());
    TILE_WIDTHS.into_iter().find(|tile| fits && states <= *tile)
}

/// Bytes of the arrays of the f32 kernels, in their order.
pub(super) struct PlainSizes {
    /// Bytes of the states that enter chunks; the gradients of the states that leave them take as many.
    pub(super) states: usize,
    /// Bytes of the factors of the states that enter chunks.
    pub(super) kept: usize,
    /// Bytes of the gradients of B and C of single heads.
    pub(super) heads: usize,
}

impl PlainSizes {
    pub(super) fn new(operands: &Operands<'_>) -> Self {
        let StateHeads { heads, width, states, .. } = operands.heads;
        let kept = 4 * operands.xbc.shape().dims()[0] * operands.chunks() * heads;
        let heads = 4 * operands.xbc.shape().rows() * heads * 2 * states;
        PlainSizes { states: kept * states * width, kept, heads }
    }
}

/// Bytes of the arrays of the kernels on tensor cores, in their order. Pairs and states are of the operands'
/// type, others f32.
pub(super) struct TileSizes {
    /// Bytes of decays and time steps.
    pub(super) scales: usize,
    /// Bytes of the weights of pairs of tokens.
    pub(super) pairs: usize,
    /// Bytes of the states before chunks, in rows of a tile's width; the gradients of the states after them
    /// take as many.
    pub(super) states: usize,
    /// Bytes of the products of tokens' rows.
    pub(super) products: usize,
    /// Bytes of the sums of gradients of B and C over parts of a group's heads; 0 if groups have one part.
    pub(super) sums: usize,
    /// Number of parts of a group's heads.
    pub(super) parts: usize,
}

impl TileSizes {
    pub(super) fn new(operands: &Operands<'_>, tile_width: usize) -> Self {
        let StateHeads { heads, groups, width, states } = operands.heads;
        let chunks = operands.xbc.shape().dims()[0] * operands.chunks() * heads;
        let element = operands.xbc.dtype().bytes();
        let single = DType::F32.bytes();
        let parts = (heads / groups).div_ceil(PART_HEADS);
        let summed = if parts > 1 { operands.xbc.shape().rows() * parts * 2 * groups * states } else { 0 };
        TileSizes {
            scales: chunks * SCALES * CHUNK * single,
            pairs: chunks * CHUNK * CHUNK * element,
            states: chunks * tile_width * width * element,
            products: chunks * states.div_ceil(SLICE) * PRODUCTS * CHUNK * single,
            sums: summed * single,
            parts,
        }
    }
}

/// Divides a workspace into arrays with these bytes. Arrays that a call does not use are empty.
pub(super) fn regions<const N: usize>(workspace: &Tensor, bytes: [usize; N]) -> [Region<'_>; N] {
    let whole = workspace.region();
    let mut first = 0;
    bytes.map(|bytes| {
        let bytes = bytes.min(whole.bytes - first);
        let region = whole.part(first, bytes);
        first += bytes;
        region
    })
}

/// Returns the bytes that the outputs take.
pub(super) fn forward_bytes(operands: &Operands<'_>) -> usize {
    let Some(width) = tile_width(operands) else { return advance_bytes(operands) };
    let TileSizes { scales, pairs, .. } = TileSizes::new(operands, width);
    scales + pairs
}

/// Returns the bytes that the last states take without outputs.
pub(super) fn advance_bytes(operands: &Operands<'_>) -> usize {
    if let Some(width) = tile_width(operands) {
        return TileSizes::new(operands, width).scales;
    }
    let PlainSizes { states, kept, .. } = PlainSizes::new(operands);
    states + kept
}

/// Returns the bytes that the gradient of the first states takes without other gradients.
pub(super) fn retreat_bytes(operands: &Operands<'_>) -> usize {
    if let Some(width) = tile_width(operands) {
        return TileSizes::new(operands, width).scales;
    }
    let PlainSizes { states, kept, .. } = PlainSizes::new(operands);
    2 * states + kept
}

/// Returns the bytes that all gradients take.
pub(super) fn backward_bytes(operands: &Operands<'_>) -> usize {
    if let Some(width) = tile_width(operands) {
        let TileSizes { scales, pairs, states, products, sums, .. } = TileSizes::new(operands, width);
        return scales + pairs + 2 * states + products + sums;
    }
    let PlainSizes { states, kept, heads } = PlainSizes::new(operands);
    2 * states + kept + heads
}
