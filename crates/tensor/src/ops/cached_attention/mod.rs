//! Attention of one new token per sequence over cached keys and values.
//!
//! Rows do not see each other, and a row's sums are split by its own position only. So a row's result does
//! not depend on the other rows, their number, or the cache's capacity. The order of its sums differs from
//! [`attention`](super::attention), so results agree up to rounding.

mod arrays;
mod cache;
mod cpu;
pub(crate) mod cuda;
mod workspace;

pub use cache::{Cache, CachedHeads, CachedValues};

use arrays::Arrays;
use device::{Backend, Category, DType, Request};

use super::attention::{Heads, Qkv, Settings, check_sinks};
use super::check;
use super::rotary::{Angles, check_angles};
use crate::{Result, Tensor};

/// Copies the keys and values of a whole sequence `qkv [1, time, columns]` to positions `0..time` of `slot`.
///
/// # Errors
/// Separate arrays, shapes or types that do not agree, a slot or a time that the cache does not have.
pub fn store(qkv: &Qkv<Tensor>, heads: Heads, cache: &Cache, slot: usize) -> Result<()> {
    const OPERATOR: &str = "cached_attention.store";
    let (qkv, [rows, time]) = cache.check(OPERATOR, qkv, heads)?;
    if rows != 1 || time > cache.capacity() || slot >= cache.slots() {
        let expected = format!("[1, at most {}, _] and one of {} slots", cache.capacity(), cache.slots());
        return Err(check::wrong(OPERATOR, "qkv", &qkv, expected));
    }
    match qkv.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::store(&qkv, heads, cache, slot),
        Backend::Cuda => cuda::store(OPERATOR, &qkv, heads, cache, slot),
    }
}

/// Copies the keys of a whole sequence `[1, time, key columns]` to positions `0..time` of `slot`, in a cache
/// whose values are columns of the keys.
///
/// # Errors
/// Shapes or types that do not agree, another kind of cache, a slot or a time that the cache does not have.
pub fn store_keys(keys: &Tensor, cache: &Cache, slot: usize) -> Result<()> {
    const OPERATOR: &str = "cached_attention.store_keys";
    let time = keys.shape().rows();
    let columns = cache.array.shape().columns();
    let fits = time <= cache.capacity() && slot < cache.slots();
    if cache.values() != CachedValues::LastOfKeys || !fits {
        let expected = format!("[1, at most {}, _] and one of {} slots", cache.capacity(), cache.slots());
        return Err(check::wrong(OPERATOR, "keys", keys, expected));
    }
    check::dtype(OPERATOR, "keys", keys, cache.array.dtype())?;
    check::shape(OPERATOR, "keys", keys, [1, time, columns])?;
    cache.array.view(slot * cache.capacity() * columns, [1, time, columns])?.copy_from(keys)
}

/// Appends one token to the sequence of every slot and computes its attention.
///
/// * `qkv [rows, 1, columns]`: row i is the next token of slot i. The result is `[rows, 1, heads.query ·
///   heads.value_width]`; rows beyond the slots give 0. If values are columns of the keys, `qkv` has no
///   values, and nothing is rotated.
/// * `documents [rows, 1]` u32: minus the position of every row, modulo 2³², as for rotary embeddings.
/// * `angles`: cosines and sines `[positions, rotated columns of a head]` f32, as in [`Angles`], by which
///   queries and keys are rotated first.
/// * `sinks`: as in [`Masks`](super::attention::Masks).
///
/// # Errors
/// Separate arrays, shapes or types that do not agree, fewer rows than slots, a position that the cache does
/// not have (on a GPU it ends the process's use of the device), out of memory.
pub fn forward(
    qkv: &Qkv<Tensor>,
    settings: impl Into<Settings>,
    cache: &Cache,
    documents: &Tensor,
    angles: Option<&Tensor>,
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    const OPERATOR: &str = "cached_attention.forward";
    let settings = settings.into();
    let heads = settings.heads;
    let (qkv, [rows, time]) = cache.check(OPERATOR, qkv, heads)?;
    if time != 1 || rows < cache.slots() {
        return Err(check::wrong(OPERATOR, "qkv", &qkv, format!("[at least {}, 1, _]", cache.slots())));
    }
    if let Some(sinks) = sinks {
        check_sinks(OPERATOR, sinks, qkv.dtype(), heads)?;
    }
    check::dtype(OPERATOR, "documents", documents, DType::U32)?;
    check::shape(OPERATOR, "documents", documents, [rows, 1])?;
    if let Some(table) = angles {
        check_table(OPERATOR, table, &qkv, heads, cache)?;
    }
    let arrays = Arrays { documents, angles, sinks };
    let device = qkv.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let output = Tensor::empty(device, [rows, 1, heads.output_columns()], qkv.dtype(), request)?;
    let bytes = workspace::bytes(cache.slots(), heads, cache.capacity());
    let workspace = Tensor::workspace(device, OPERATOR, bytes)?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(OPERATOR, &qkv, settings, cache, arrays, &output)?,
        Backend::Cuda => cuda::forward(OPERATOR, &qkv, settings, cache, arrays, &workspace, &output)?,
    }
    Ok(output)
}

/// Refuses a table of angles that is shorter than the cache, or is used with a cache whose values are columns
/// of the keys.
fn check_table(
    operator: &'static str,
    table: &Tensor,
    qkv: &Tensor,
    heads: Heads,
    cache: &Cache,
) -> Result<()> {
    check_angles(operator, qkv, Angles { table, head_width: Some(heads.width), documents: None })?;
    if table.shape().rows() < cache.capacity() || cache.values() == CachedValues::LastOfKeys {
        let expected = format!("{} positions, and values of their own", cache.capacity());
        return Err(check::wrong(operator, "angles", table, expected));
    }
    Ok(())
}
