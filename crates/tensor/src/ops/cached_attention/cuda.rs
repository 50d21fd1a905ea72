//! Launches of `kernels/cached_attention.cu`.

use device::{Family, Function};

use super::cache::Cache;
use super::workspace::{self, CHUNK};
use crate::ops::attention::{Heads, Settings};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Threads of a block, which computes a chunk.
const STRANDS: u32 = 128;
/// Threads that share a key.
const LANES: u32 = 8;
/// Query heads computed at once.
const QUERIES: u32 = 4;

const WARP: u32 = 32;

/// `kernels/cached_attention.cu`.
pub(crate) static FAMILY: Family = family!(
    "cached_attention",
    constants: &[
        gpu::THREADS_CONSTANT,
        ("CHUNK", CHUNK as u32),
        ("STRANDS", STRANDS),
        ("LANES", LANES),
        ("QUERIES", QUERIES),
    ],
);

/// Returns 1 if heads are read by 16 bytes, else 0.
fn vector(heads: Heads, tensors: &[&Tensor]) -> u32 {
    let lanes = gpu::lanes(tensors[0].dtype());
    u32::from(heads.width.is_multiple_of(lanes) && gpu::aligned(tensors))
}

pub(super) fn store(
    operator: &'static str,
    qkv: &Tensor,
    heads: Heads,
    cache: &Cache,
    slot: usize,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let array = cache.array.view(
        slot * 2 * heads.key_value_columns() * cache.capacity(),
        [2 * heads.key_value, cache.capacity(), heads.width],
    )?;
    let (time, vector) = (qkv.shape().dims()[1], vector(heads, &[qkv, &array]));
    let lanes = if vector == 1 { gpu::lanes(qkv.dtype()) } else { 1 };
    let items = time * 2 * heads.key_value_columns() / lanes;
    let launch = qkv.device().kernel(Function::new(&FAMILY, "store").of(qkv.dtype()));
    let launch = launch.read(qkv.region()).write(array.region()).u32(word(items)?);
    let launch = launch.u32(word(heads.query)?).u32(word(2 * heads.key_value)?).u32(word(heads.width)?);
    let launch = launch.u32(word(cache.capacity())?).u32(vector);
    let bytes = 4 * (time * heads.key_value_columns() * qkv.dtype().bytes()) as u64;
    let blocks = word(items.div_ceil(gpu::THREADS as usize))?;
    Ok(launch.cost(bytes, 0).launch([blocks, 1, 1], gpu::THREADS)?)
}

pub(super) fn forward(
    operator: &'static str,
    qkv: &Tensor,
    settings: Settings,
    cache: &Cache,
    (documents, sinks): (&Tensor, Option<&Tensor>),
    partials: &Tensor,
    output: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let Settings { heads, soft_cap, window, .. } = settings;
    let (device, dtype) = (qkv.device(), qkv.dtype());
    let (rows, slots, capacity) = (output.shape().dims()[0], cache.slots(), cache.capacity());
    let chunks = word(capacity.div_ceil(CHUNK))?;
    let [query, group, width] = [word(heads.query)?, word(heads.group())?, word(heads.width)?];
    let kernel = |name| device.kernel(Function::new(&FAMILY, name).of(dtype));
    let launch = kernel("chunks").read(qkv.region()).write(cache.array.region()).read(documents.region());
    let launch = launch.write(partials.region()).u32(query).u32(group).u32(width).u32(word(capacity)?);
    // A window of the capacity or more hides nothing.
    let window = word(window.filter(|window| *window < capacity).unwrap_or(0))?;
    let launch = launch.f32(settings.factor()).f32(soft_cap.unwrap_or(0.0)).u32(window);
    let launch = launch.u32(vector(heads, &[qkv, &cache.array]));
    // The bytes read depend on positions, which are on the device: at most the whole cache.
    let flops = 4 * (slots * capacity * heads.query_columns()) as u64;
    // Queries, scores and statistics of a group, and a sum for each warp, query, lane and element of a
    // vector.
    let sums = STRANDS / WARP * QUERIES * LANES * word(gpu::lanes(dtype))?;
    let shared = 4 * (group * (width + CHUNK as u32 + 2) + sums);
    let grid = [chunks, word(heads.key_value)?, word(slots)?];
    launch.cost(cache.bytes() as u64, flops).shared(shared).launch(grid, STRANDS)?;
    let launch = kernel("join").read(partials.region()).read(documents.region()).write(output.region());
    let launch = launch.u32(word(slots)?).u32(query).u32(width).u32(chunks).u32(window);
    let launch = match sinks {
        Some(sinks) => launch.read(sinks.region()),
        None => launch.null(),
    };
    let bytes = workspace::bytes(slots, heads, capacity) + output.bytes();
    Ok(launch.cost(bytes as u64, 0).launch([query, word(rows)?, 1], STRANDS)?)
}
