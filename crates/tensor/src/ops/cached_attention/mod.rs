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

/// Copies the keys and values of a whole sequence `qkv_blc [1, time, columns]` to positions `0..time` of
/// `slot`.
///
/// # Errors
/// Separate arrays, shapes or types that do not agree, a slot or a time that the cache does not have.
pub fn store(qkv_blc: &Qkv<Tensor>, heads: Heads, cache: &Cache, slot: usize) -> Result<()> {
    const OPERATOR: &str = "cached_attention.store";
    let (qkv_blc, [rows, time]) = cache.check(OPERATOR, qkv_blc, heads)?;
    if rows != 1 || time > cache.capacity() || slot >= cache.slots() {
        let expected = format!("[1, at most {}, _] and one of {} slots", cache.capacity(), cache.slots());
        return Err(check::wrong(OPERATOR, "qkv", &qkv_blc, expected));
    }
    match qkv_blc.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::store(&qkv_blc, heads, cache, slot),
        Backend::Cuda => cuda::store(OPERATOR, &qkv_blc, heads, cache, slot),
    }
}

/// Copies the keys of a whole sequence `[1, time, key columns]` to positions `0..time` of `slot`, in a cache
/// whose values are columns of the keys.
///
/// # Errors
/// Shapes or types that do not agree, another kind of cache, a slot or a time that the cache does not have.
pub fn store_keys(keys_blc: &Tensor, cache: &Cache, slot: usize) -> Result<()> {
    const OPERATOR: &str = "cached_attention.store_keys";
    let time = keys_blc.shape().rows();
    let columns = cache.array.shape().columns();
    let fits = time <= cache.capacity() && slot < cache.slots();
    if cache.values() != CachedValues::LastOfKeys || !fits {
        let expected = format!("[1, at most {}, _] and one of {} slots", cache.capacity(), cache.slots());
        return Err(check::wrong(OPERATOR, "keys", keys_blc, expected));
    }
    check::dtype(OPERATOR, "keys", keys_blc, cache.array.dtype())?;
    check::shape(OPERATOR, "keys", keys_blc, [1, time, columns])?;
    cache.array.view(slot * cache.capacity() * columns, [1, time, columns])?.copy_from(keys_blc)
}

/// Appends one token to the sequence of every slot and computes its attention.
///
/// * `qkv_blc [rows, 1, columns]`: row i is the next token of slot i. The result is `[rows, 1, heads.query ·
///   heads.value_width]`; rows beyond the slots give 0. If values are columns of the keys, `qkv` has no
///   values, and nothing is rotated.
/// * `documents_bl [rows, 1]` u32: minus the position of every row, modulo 2³², as for rotary embeddings.
/// * `angles_lk`: cosines and sines `[positions, rotated columns of a head]` f32, as in [`Angles`], by which
///   queries and keys are rotated first.
/// * `sinks_h`: as in [`Masks`](super::attention::Masks).
///
/// # Errors
/// Separate arrays, shapes or types that do not agree, fewer rows than slots, a position that the cache does
/// not have (on a GPU it ends the process's use of the device), out of memory.
pub fn forward(
    qkv_blc: &Qkv<Tensor>,
    settings: impl Into<Settings>,
    cache: &Cache,
    documents_bl: &Tensor,
    angles_lk: Option<&Tensor>,
    sinks_h: Option<&Tensor>,
) -> Result<Tensor> {
    const OPERATOR: &str = "cached_attention.forward";
    let settings = settings.into();
    let heads = settings.heads;
    let (qkv_blc, [rows, time]) = cache.check(OPERATOR, qkv_blc, heads)?;
    if time != 1 || rows < cache.slots() {
        return Err(check::wrong(OPERATOR, "qkv", &qkv_blc, format!("[at least {}, 1, _]", cache.slots())));
    }
    if let Some(sinks_h) = sinks_h {
        check_sinks(OPERATOR, sinks_h, qkv_blc.dtype(), heads)?;
    }
    check::dtype(OPERATOR, "documents", documents_bl, DType::U32)?;
    check::shape(OPERATOR, "documents", documents_bl, [rows, 1])?;
    if let Some(table) = angles_lk {
        check_table(OPERATOR, table, &qkv_blc, heads, cache)?;
    }
    let arrays = Arrays { documents: documents_bl, angles: angles_lk, sinks: sinks_h };
    let device = qkv_blc.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let output_blc = Tensor::empty(device, [rows, 1, heads.output_columns()], qkv_blc.dtype(), request)?;
    let bytes = workspace::bytes(cache.slots(), heads, cache.capacity());
    let workspace = Tensor::workspace(device, OPERATOR, bytes)?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(OPERATOR, &qkv_blc, settings, cache, arrays, &output_blc)?,
        Backend::Cuda => cuda::forward(OPERATOR, &qkv_blc, settings, cache, arrays, &workspace, &output_blc)?,
    }
    Ok(output_blc)
}

/// Refuses a table of angles that is shorter than the cache, or is used with a cache whose values are columns
/// of the keys.
fn check_table(
    operator: &'static str,
    table_lk: &Tensor,
    qkv_blc: &Tensor,
    heads: Heads,
    cache: &Cache,
) -> Result<()> {
    check_angles(
        operator,
        qkv_blc,
        Angles { table: table_lk, head_width: Some(heads.width), documents: None, interleaved: false },
    )?;
    if table_lk.shape().rows() < cache.capacity() || cache.values() == CachedValues::LastOfKeys {
        let expected = format!("{} positions, and values of their own", cache.capacity());
        return Err(check::wrong(operator, "angles", table_lk, expected));
    }
    Ok(())
}
