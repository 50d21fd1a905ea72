//! Launches of `kernels/cached_attention.cu`.

use device::{Family, Function, Work};

use super::arrays::Arrays;
use super::cache::{Cache, CachedValues};
use super::workspace::{self, CHUNK};
use crate::ops::attention::{Heads, Settings};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Threads of a block. A block computes a chunk of positions.
const STRANDS: u32 = 128;
/// Threads that compute one key's score together.
const LANES: u32 = 8;
/// Query heads computed at once.
const QUERIES: u32 = 4;

const WARP: u32 = 32;

pub(crate) static FAMILY: Family = family!(
    "cached_attention",
    headers: ["early.cuh", "rotary.cuh"],
    constants: &[
        gpu::THREADS_CONSTANT,
        ("CHUNK", CHUNK as u32),
        ("STRANDS", STRANDS),
        ("LANES", LANES),
        ("QUERIES", QUERIES),
    ],
    variants: &[&[], &[("VALUES", 1)], &[("VALUES", 1), ("LAST_OF_KEYS", 1)]],
);

/// Largest number of query heads that one block computes if all share a key head.
const MOST_QUERIES: usize = 16;
const MOST_SHARED: usize = 11 << 10;

/// Returns 1 if heads are read 16 bytes at a time, else 0.
fn vector(heads: Heads, tensors: &[&Tensor]) -> u32 {
    let lanes = gpu::lanes(tensors[0].dtype());
    let whole = heads.width.is_multiple_of(lanes) && heads.value_width.is_multiple_of(lanes);
    u32::from(whole && gpu::aligned(tensors))
}

/// Returns the query heads per block if all share one key head.
fn together(Heads { query, width, .. }: Heads) -> usize {
    let fits = |count: &usize| query.is_multiple_of(*count) && count * (width + CHUNK + 2) <= MOST_SHARED;
    (1..=query.min(MOST_QUERIES)).rev().find(fits).unwrap_or(1)
}

/// Returns the variant of the kernels: 1 if values and keys differ in width, else 0.
fn variant(heads: Heads) -> usize {
    usize::from(!heads.are_equally_wide())
}

pub(super) fn store(
    operator: &'static str,
    qkv_blc: &Tensor,
    heads: Heads,
    cache: &Cache,
    slot: usize,
) -> Result<()> {
    let Heads { key_value, width, value_width, .. } = heads;
    let first = slot * (heads.key_columns() + heads.value_columns()) * cache.capacity();
    if heads.are_equally_wide() {
        let part = CopiedHeads { first, heads: 2 * key_value, width, row: None };
        return store_part(operator, qkv_blc, heads, cache, part);
    }
    let columns = heads.packed_columns();
    let before = heads.query_columns();
    let keys = CopiedHeads { first, heads: key_value, width, row: Some([columns, before]) };
    store_part(operator, qkv_blc, heads, cache, keys)?;
    let first = first + heads.key_columns() * cache.capacity();
    let before = before + heads.key_columns();
    let values = CopiedHeads { first, heads: key_value, width: value_width, row: Some([columns, before]) };
    store_part(operator, qkv_blc, heads, cache, values)
}

/// Heads of equal width to copy into a slot.
struct CopiedHeads {
    /// Index of the first element in the cache.
    first: usize,
    heads: usize,
    width: usize,
    /// Number of columns in a row of `qkv`, and the column at which these heads begin.
    row: Option<[usize; 2]>,
}

fn store_part(
    operator: &'static str,
    qkv_blc: &Tensor,
    all: Heads,
    cache: &Cache,
    CopiedHeads { first, heads, width, row }: CopiedHeads,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let array = cache.array.view(first, [heads, cache.capacity(), width])?;
    let time = qkv_blc.shape().dims()[1];
    let vector = vector(all, &[qkv_blc, &array]);
    let lanes = if vector == 1 { gpu::lanes(qkv_blc.dtype()) } else { 1 };
    let items = time * heads * width / lanes;
    let function = Function::new(&FAMILY, "store").with_dtype(qkv_blc.dtype()).variant(variant(all));
    let launch = qkv_blc.device().kernel(function).read(qkv_blc).write(&array).u32(word(items)?);
    let launch = launch.u32(word(all.query)?).u32(word(heads)?).u32(word(width)?);
    let launch = launch.u32(word(cache.capacity())?).u32(vector);
    let launch = match row {
        Some([columns, before]) => launch.u32(word(columns)?).u32(word(before)?),
        None => launch,
    };
    let bytes = 2 * (time * heads * width * qkv_blc.dtype().bytes()) as u64;
    let blocks = word(items.div_ceil(gpu::THREADS as usize))?;
    Ok(launch.cost(bytes, 0).launch([blocks, 1, 1], gpu::THREADS)?)
}

pub(super) fn forward(
    operator: &'static str,
    qkv_blc: &Tensor,
    settings: Settings,
    cache: &Cache,
    Arrays { documents: documents_bl, angles: angles_lk, sinks: sinks_h }: Arrays<'_>,
    partials: &Tensor,
    output_blc: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let Settings { heads, soft_cap, window, .. } = settings;
    let device = qkv_blc.device();
    let dtype = qkv_blc.dtype();
    let rows = output_blc.shape().dims()[0];
    let slots = cache.slots();
    let capacity = cache.capacity();
    let chunks = word(capacity.div_ceil(CHUNK))?;
    let (variant, group) = match cache.values() {
        CachedValues::Own => (variant(heads), heads.group()),
        CachedValues::LastOfKeys => (2, together(heads)),
    };
    let tiles = word(heads.query / group)?;
    let [query, group, width] = [word(heads.query)?, word(group)?, word(heads.width)?];
    let kernel = |name| device.kernel(Function::new(&FAMILY, name).with_dtype(dtype).variant(variant));
    let value_width = word(heads.value_width)?;
    let launch = kernel("chunks").read(qkv_blc).write(&cache.array).read(documents_bl);
    let launch = launch.write(partials).u32(query).u32(group).u32(width).u32(word(capacity)?);
    // A window of the capacity or more hides nothing.
    let window = word(window.filter(|window| *window < capacity).unwrap_or(0))?;
    let launch = launch.f32(settings.factor()).f32(soft_cap.unwrap_or(0.0)).u32(window);
    let launch = match angles_lk {
        Some(table_lk) => launch.read(table_lk).u32(word(table_lk.shape().columns())?),
        None => launch.null().u32(0),
    };
    let launch = launch.u32(vector(heads, &[qkv_blc, &cache.array]));
    let launch = if variant == 0 { launch } else { launch.u32(value_width) };
    // The bytes read depend on positions, which are on the device: at most the whole cache.
    let columns = heads.query_columns() + heads.output_columns();
    let flops = Work::flops_of_products([slots, capacity, columns]);
    // Queries, scores and statistics of a group, and a sum for each warp, query, lane and element of a
    // vector.
    let sums = STRANDS / WARP * QUERIES * LANES * word(gpu::lanes(dtype))?;
    let shared = 4 * (group * (width + CHUNK as u32 + 2) + sums);
    let grid = [chunks, tiles, word(slots)?];
    launch.cost(cache.bytes() as u64, flops).shared(shared).early().launch(grid, STRANDS)?;
    let launch = kernel("join").early().read(partials).read(documents_bl).write(output_blc);
    let launch = launch.u32(word(slots)?).u32(query).u32(value_width).u32(chunks).u32(window).read(sinks_h);
    let bytes = workspace::bytes(slots, heads, capacity) + output_blc.bytes();
    Ok(launch.cost(bytes as u64, 0).launch([query, word(rows)?, 1], STRANDS)?)
}
