//! Workspaces of the gated delta rule.
//!
//! On the CPU, each task has one piece of an f32 array: the tiles of a chunk, and results that are moved to
//! the order of the outputs at the end. On a GPU, arrays of all chunks lie behind each other.

use std::ops::Range;

use device::{Category, Device, Request};

use super::operands::{CHUNK, DeltaHeads, Geometry};
use crate::ops::gpu;
use crate::{DType, Result, Tensor};

/// Allocates the workspace of the forward pass over `qkv`.
pub(super) fn forward(qkv: &Tensor, operator: &'static str, geometry: &Geometry) -> Result<Tensor> {
    let words = match qkv.device().is_cuda_like() {
        false => geometry.batch * geometry.settings.heads.value * HostTask::forward(geometry).words,
        true => match tile_width(qkv, geometry) {
            Some(width) => TileArrays::new(geometry, width).forward,
            None => PlainArrays::new(geometry).forward,
        },
    };
    allocate(qkv.device(), operator, words)
}

/// Allocates the workspace of the backward pass over `qkv`.
pub(super) fn backward(qkv: &Tensor, operator: &'static str, geometry: &Geometry) -> Result<Tensor> {
    let words = match qkv.device().is_cuda_like() {
        false => geometry.batch * geometry.settings.heads.key * HostTask::backward(geometry).words,
        true => match tile_width(qkv, geometry) {
            Some(width) => TileArrays::new(geometry, width).backward,
            None => PlainArrays::new(geometry).backward,
        },
    };
    allocate(qkv.device(), operator, words)
}

/// Widths of tiles of queries and keys that kernels on tensor cores are compiled for.
pub(super) const TILE_WIDTHS: [usize; 2] = [64, 128];
/// Number of columns of 16 bytes in a half type, the unit in which tiles are copied.
const TILE_STEP: usize = 8;

/// Returns the width of tiles of the kernels on tensor cores; `None` if the kernels in f32 are used: for f32
/// operands, for decays by channel, for other widths, and on GPUs with less shared memory.
pub(super) fn tile_width(qkv: &Tensor, geometry: &Geometry) -> Option<usize> {
    let DeltaHeads { width, value_width, .. } = geometry.settings.heads;
    let fits = qkv.dtype() != DType::F32
        && !geometry.settings.by_channel
        && width.is_multiple_of(TILE_STEP)
        && value_width.is_multiple_of(TILE_STEP)
        && gpu::has_memory_for_tiles(qkv.device());
    TILE_WIDTHS.into_iter().find(|tile| fits && width <= *tile)
}

fn allocate(device: &Device, operator: &'static str, words: usize) -> Result<Tensor> {
    Tensor::empty(device, [words], DType::F32, Request::new(Category::Workspace, operator))
}

/// Workspace of one task on the CPU: results, then the states of its heads, then tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostTask {
    /// Size of the task's workspace in f32 elements.
    pub(super) words: usize,
    /// Elements of the results of a key head: gradients of its queries and keys.
    pub(super) shared: usize,
    /// Elements of the results of a value head.
    pub(super) own: usize,
}

impl HostTask {
    /// Returns the workspace of a value head in the forward pass: its output and its state.
    pub(super) fn forward(geometry: &Geometry) -> Self {
        let DeltaHeads { width, value_width, .. } = geometry.settings.heads;
        let own = geometry.time * value_width + width * value_width;
        HostTask { words: own + tiles(geometry), shared: 0, own }
    }

    /// Returns the workspace of a key head in the backward pass: gradients of its queries, keys and value
    /// heads, and the states of its value heads at the start of each chunk.
    pub(super) fn backward(geometry: &Geometry) -> Self {
        let DeltaHeads { width, value_width, .. } = geometry.settings.heads;
        let channels = geometry.settings.channels();
        let state = width * value_width;
        let shared = 2 * geometry.time * width;
        let own = geometry.time * (value_width + channels + 1) + state;
        let states = geometry.chunks() * state;
        let more = CHUNK * (3 * width + 2 * value_width + 2 * CHUNK + channels + 1) + state;
        let words = shared + geometry.group() * (own + states) + tiles(geometry) + more;
        HostTask { words, shared, own }
    }
}

/// Returns the elements of a chunk's tiles: queries, keys, values, rates, three forms of decays, two matrices
/// of pairs of tokens, and corrections.
fn tiles(geometry: &Geometry) -> usize {
    let DeltaHeads { width, value_width, .. } = geometry.settings.heads;
    let channels = geometry.settings.channels();
    CHUNK * (2 * width + 2 * value_width + 1 + 3 * channels + 2 * CHUNK)
}

/// Puts arrays one after another, each aligned to 16 bytes.
#[derive(Default)]
struct Layout {
    /// Number of elements so far, padding included.
    words: usize,
}

impl Layout {
    /// Adds an array of `words` elements, and returns its range.
    fn append(&mut self, words: usize) -> Range<usize> {
        let first = self.words;
        self.words += words.next_multiple_of(16 / DType::F32.bytes());
        first..first + words
    }
}

/// Arrays of the f32 kernels in the workspace. The forward pass has the arrays up to `states` only.
#[derive(Clone, Debug)]
pub(super) struct PlainArrays {
    /// Normalised queries of all key heads.
    pub(super) queries: Range<usize>,
    /// Normalised keys.
    pub(super) keys: Range<usize>,
    /// Sums of decays of all value heads.
    pub(super) sums: Range<usize>,
    /// Corrections, with the columns of values.
    pub(super) x: Range<usize>,
    /// Weights of states in corrections, with the columns of keys.
    pub(super) weights: Range<usize>,
    /// States before all chunks.
    pub(super) states: Range<usize>,
    /// Gradients of queries.
    pub(super) dqueries: Range<usize>,
    /// Gradients of keys.
    pub(super) dkeys: Range<usize>,
    /// Gradients of corrections.
    pub(super) du: Range<usize>,
    /// Gradients of the states after all chunks.
    pub(super) dstates: Range<usize>,
    /// Elements of the workspace of the forward pass.
    forward: usize,
    /// Elements of the workspace of the backward pass.
    backward: usize,
}

impl PlainArrays {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let DeltaHeads { key, value, width, value_width } = geometry.settings.heads;
        let tokens = geometry.batch * geometry.time;
        let all_states = geometry.batch * geometry.chunks() * geometry.settings.heads.state_elements();
        let mut layout = Layout::default();
        let queries = layout.append(tokens * key * width);
        let keys = layout.append(tokens * key * width);
        let sums = layout.append(tokens * geometry.settings.decays());
        let x = layout.append(tokens * value * value_width);
        let weights = layout.append(tokens * value * width);
        let states = layout.append(all_states);
        let forward = layout.words;
        let dqueries = layout.append(tokens * key * width);
        let dkeys = layout.append(tokens * key * width);
        let du = layout.append(tokens * value * value_width);
        let dstates = layout.append(all_states);
        let backward = layout.words;
        PlainArrays {
            queries,
            keys,
            sums,
            x,
            weights,
            states,
            dqueries,
            dkeys,
            du,
            dstates,
            forward,
            backward,
        }
    }
}

/// Count of values per token in [`TileArrays::scales`]: `Scale` in `kernels/gated_delta_tiles.cuh`.
const SCALES: usize = 9;

/// Arrays of the kernels on tensor cores in the workspace. All but `scales` hold two values of a half type in
/// each f32 element. The forward pass has the arrays up to `scales` only.
#[derive(Clone, Debug)]
pub(super) struct TileArrays {
    /// Inverses of the triangular matrices of all chunks and value heads.
    pub(super) solved: Range<usize>,
    /// Products of queries and keys.
    pub(super) pairs: Range<usize>,
    /// Norms, decays and rates.
    pub(super) scales: Range<usize>,
    /// Corrections, with the columns of values.
    pub(super) x: Range<usize>,
    /// States before all chunks, in rows of a tile's width.
    pub(super) states: Range<usize>,
    /// Gradients of the states after all chunks.
    pub(super) dstates: Range<usize>,
    /// Elements of the workspace of the forward pass.
    forward: usize,
    /// Elements of the workspace of the backward pass.
    backward: usize,
}

impl TileArrays {
    pub(super) fn new(geometry: &Geometry, tile_width: usize) -> Self {
        let DeltaHeads { value, value_width, .. } = geometry.settings.heads;
        let chunks = geometry.batch * value * geometry.chunks();
        let mut layout = Layout::default();
        let solved = layout.append(chunks * CHUNK * CHUNK / 2);
        let pairs = layout.append(chunks * CHUNK * CHUNK / 2);
        let scales = layout.append(chunks * CHUNK * SCALES);
        let forward = layout.words;
        let x = layout.append(geometry.batch * geometry.time * value * value_width / 2);
        let states = layout.append(chunks * tile_width * value_width / 2);
        let dstates = layout.append(chunks * tile_width * value_width / 2);
        TileArrays { solved, pairs, scales, x, states, dstates, forward, backward: layout.words }
    }
}
