//! Attention over a cache on the host: one task for each row.

use std::slice::ChunksExact;

use device::parallel::{for_pieces, simd};
use device::{DType, Float, dispatch};

use super::arrays::Arrays;
use super::cache::{Cache, CachedValues};
use crate::ops::attention::{Heads, Settings};
use crate::ops::math::{exp, sum2};
use crate::ops::pointwise::soft_cap;
use crate::ops::rotary::Rotation;
use crate::ops::rotary::cpu::{Angles, rotate};
use crate::{Result, Tensor, TensorError};

/// Returns the index of the first element of a head's keys, and of its values, in the cache.
fn offsets(slot: usize, head: usize, heads: Heads, capacity: usize) -> [usize; 2] {
    let Heads { key_value, width, value_width, .. } = heads;
    let keys = slot * key_value * capacity * (width + value_width);
    [keys + head * capacity * width, keys + (key_value * width + head * value_width) * capacity]
}

/// Copies the keys and values of one row to `position` in `slot`.
fn store_row(row: &[f32], heads: Heads, array: &mut [f32], slot: usize, capacity: usize, position: usize) {
    let (keys, values) = row[heads.query_columns()..].split_at(heads.key_columns());
    for head in 0..heads.key_value {
        let offsets = offsets(slot, head, heads, capacity);
        for ((from, width), offset) in
            [(keys, heads.width), (values, heads.value_width)].into_iter().zip(offsets)
        {
            let at = offset + position * width;
            array[at..at + width].copy_from_slice(&from[head * width..][..width]);
        }
    }
}

pub(super) fn store(qkv_blc: &Tensor, heads: Heads, cache: &Cache, slot: usize) -> Result<()> {
    let qkv_blc = qkv_blc.values()?;
    let mut array = cache.array.values_mut()?;
    for (position, row) in qkv_blc.chunks_exact(heads.packed_columns()).enumerate() {
        store_row(row, heads, &mut array, slot, cache.capacity(), position);
    }
    Ok(())
}

pub(super) fn forward(
    operator: &'static str,
    qkv_blc: &Tensor,
    settings: Settings,
    cache: &Cache,
    Arrays { documents: documents_bl, angles, sinks: sinks_h }: Arrays<'_>,
    output_blc: &Tensor,
) -> Result<()> {
    let heads = settings.heads;
    let dtype = qkv_blc.dtype();
    let slots = cache.slots();
    let capacity = cache.capacity();
    let columns = qkv_blc.shape().columns();
    let qkv_blc = qkv_blc.values()?;
    let documents_bl = documents_bl.read::<u32>()?;
    let sinks_h = sinks_h.map(Tensor::values).transpose()?;
    let sinks_h = sinks_h.as_deref();
    let kept = cache.values();
    let positions: Vec<usize> =
        documents_bl.iter().take(slots).map(|first| 0_u32.wrapping_sub(*first) as usize).collect();
    if let Some(late) = positions.iter().find(|position| **position >= capacity) {
        return Err(TensorError::Index { operator, index: *late as u32, limit: capacity });
    }
    let turned = match angles {
        Some(table) => {
            Some(rotated(&qkv_blc[..slots * columns], columns, heads, (table, &documents_bl), dtype)?)
        }
        None => None,
    };
    let qkv_blc: &[f32] = turned.as_deref().unwrap_or(&qkv_blc);
    {
        let mut array = cache.array.values_mut()?;
        for (slot, (row, position)) in qkv_blc.chunks_exact(columns).zip(&positions).enumerate() {
            match kept {
                CachedValues::Own => store_row(row, heads, &mut array, slot, capacity, *position),
                CachedValues::LastOfKeys => {
                    let at = (slot * capacity + position) * heads.width;
                    array[at..at + heads.width].copy_from_slice(&row[heads.query_columns()..]);
                }
            }
        }
    }
    let array = cache.array.values()?;
    let array: &[f32] = &array;
    for_pieces(&mut output_blc.values_mut()?, heads.output_columns(), |row, out| {
        out.fill(0.0);
        let Some(position) = positions.get(row) else { return };
        let queries = qkv_blc[row * columns..].chunks_exact(heads.width);
        let first = settings.window_start(*position);
        let mut weights = vec![0.0; position + 1 - first];
        for (head, (query, out)) in queries.zip(out.chunks_exact_mut(heads.value_width)).enumerate() {
            let visible_rows =
                |offset, width| array[offset..][first * width..(position + 1) * width].chunks_exact(width);
            let seen = match kept {
                CachedValues::Own => {
                    let [keys, values] = offsets(row, head / heads.group(), heads, capacity);
                    [(visible_rows(keys, heads.width), 0), (visible_rows(values, heads.value_width), 0)]
                }
                CachedValues::LastOfKeys => {
                    let keys = visible_rows(row * capacity * heads.width, heads.width);
                    [(keys.clone(), 0), (keys, heads.width - heads.value_width)]
                }
            };
            simd(
                #[inline(always)]
                || {
                    let sink = sinks_h.map(|sinks| sinks[head]);
                    attend(query, seen, (settings, sink), &mut weights, out);
                },
            );
        }
    });
    Ok(())
}

/// Returns the rows with queries and keys rotated to their positions, rounded to `dtype`.
fn rotated(
    rows: &[f32],
    columns: usize,
    heads: Heads,
    (table_lk, documents_bl): (&Tensor, &[u32]),
    dtype: DType,
) -> Result<Vec<f32>> {
    let width = table_lk.shape().columns();
    let table_lk = table_lk.values()?;
    let mut turned = rows.to_vec();
    let angles = Angles { table: &table_lk, documents: Some(documents_bl), time: 1, width };
    rotate(
        &mut turned,
        columns,
        [heads.query + heads.key_value, heads.width],
        angles,
        (Rotation::Forward, false),
    );
    dispatch!(dtype, T => turned.iter_mut().for_each(|x| *x = T::from_f32(*x).to_f32()), _ => {});
    Ok(turned)
}

/// Visible rows of keys or values, and the column where the head begins in each row.
type Seen<'a> = (ChunksExact<'a, f32>, usize);

/// Adds one head's output to `out`, which holds zeros.
#[inline(always)]
fn attend(
    query: &[f32],
    [(keys, _), (values, first)]: [Seen<'_>; 2],
    (settings, sink): (Settings, Option<f32>),
    weights: &mut [f32],
    out: &mut [f32],
) {
    let scale = settings.factor();
    let mut largest = sink.unwrap_or(f32::NEG_INFINITY);
    for (weight, key) in weights.iter_mut().zip(keys) {
        let score = sum2(query, key, |a, b| a * b) * scale;
        *weight = settings.soft_cap.map_or(score, |cap| soft_cap(score, cap));
        largest = largest.max(*weight);
    }
    let mut total = sink.map_or(0.0, |sink| exp(sink - largest));
    for (weight, value) in weights.iter_mut().zip(values) {
        *weight = exp(*weight - largest);
        total += *weight;
        out.iter_mut().zip(&value[first..]).for_each(|(out, value)| *out = weight.mul_add(*value, *out));
    }
    out.iter_mut().for_each(|out| *out /= total);
}
