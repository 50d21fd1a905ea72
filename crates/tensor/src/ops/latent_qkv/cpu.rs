//! Packs the heads of latent attention on the host, one task per block of rows.

use device::parallel::for_pieces;

use super::heads::LatentHeads;
use crate::ops::rows;
use crate::{Result, Tensor};

pub(super) fn forward(operands: [&Tensor; 3], heads: LatentHeads, packed_blc: &Tensor) -> Result<()> {
    let LatentHeads { query, key_value, rotated, plain, value_width, .. } = heads;
    let [queries_blc, keys_values_blc, shared_blk] = operands;
    let queries_blc = queries_blc.values()?;
    let keys_values_blc = keys_values_blc.values()?;
    let shared_blk = shared_blk.values()?;
    let (queries_blc, keys_values_blc, shared_blk): (&[f32], &[f32], &[f32]) =
        (&queries_blc, &keys_values_blc, &shared_blk);
    let [of_queries, of_keys, _] = heads.columns();
    let width = heads.width();
    each_row(&mut packed_blc.values_mut()?, heads.packed_columns(), |row, out| {
        let (to_queries, rest) = out.split_at_mut(of_queries);
        let (to_keys, to_values) = rest.split_at_mut(key_value * width);
        let from = &queries_blc[row * of_queries..][..of_queries];
        for (to, from) in to_queries.chunks_exact_mut(width).zip(from.chunks_exact(width)).take(query) {
            let (own, turned) = from.split_at(plain);
            gather(heads, &mut to[..rotated], turned);
            to[rotated..].copy_from_slice(own);
        }
        let from = &keys_values_blc[row * of_keys..][..of_keys];
        let turned = &shared_blk[row * rotated..][..rotated];
        let each = plain + value_width;
        for (to, from) in to_keys.chunks_exact_mut(width).zip(from.chunks_exact(each)) {
            gather(heads, &mut to[..rotated], turned);
            to[rotated..].copy_from_slice(&from[..plain]);
        }
        for (to, from) in to_values.chunks_exact_mut(value_width.max(1)).zip(from.chunks_exact(each)) {
            to.copy_from_slice(&from[plain..]);
        }
    });
    Ok(())
}

pub(super) fn backward(dy_blc: &Tensor, heads: LatentHeads, gradients: &[Tensor; 3]) -> Result<()> {
    let LatentHeads { rotated, plain, value_width, .. } = heads;
    let dy_blc = dy_blc.values()?;
    let columns = heads.packed_columns();
    let width = heads.width();
    let dy_blc: &[f32] = &dy_blc;
    let [of_queries, of_keys, _] = heads.columns();
    let each = plain + value_width;
    let keys = |row: usize| &dy_blc[row * columns + of_queries..][..heads.key_value * width];
    let values = |row: usize| &dy_blc[row * columns + of_queries + heads.key_value * width..];
    each_row(&mut gradients[0].values_mut()?, of_queries, |row, out| {
        let from = dy_blc[row * columns..][..of_queries].chunks_exact(width);
        for (to, from) in out.chunks_exact_mut(width).zip(from) {
            let (own, turned) = to.split_at_mut(plain);
            from[..rotated]
                .iter()
                .enumerate()
                .for_each(|(column, from)| turned[heads.source(column)] = *from);
            own.copy_from_slice(&from[rotated..]);
        }
    });
    each_row(&mut gradients[1].values_mut()?, of_keys, |row, out| {
        let keys = keys(row).chunks_exact(width);
        let values = values(row);
        for (head, (to, from)) in out.chunks_exact_mut(each).zip(keys).enumerate() {
            to[..plain].copy_from_slice(&from[rotated..]);
            to[plain..].copy_from_slice(&values[head * value_width..][..value_width]);
        }
    });
    each_row(&mut gradients[2].values_mut()?, rotated, |row, out| {
        out.fill(0.0);
        for from in keys(row).chunks_exact(width) {
            from[..rotated].iter().enumerate().for_each(|(column, from)| out[heads.source(column)] += from);
        }
    });
    Ok(())
}

/// Calls `f` with the index and the elements of each row of `out`.
fn each_row(out: &mut [f32], columns: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let per_task = rows::per_task(columns);
    for_pieces(out, per_task * columns, |index, out| {
        out.chunks_exact_mut(columns).enumerate().for_each(|(row, out)| f(index * per_task + row, out));
    });
}

/// Copies the rotated columns of an operand to their order in the result.
fn gather(heads: LatentHeads, to: &mut [f32], from: &[f32]) {
    to.iter_mut().enumerate().for_each(|(column, to)| *to = from[heads.source(column)]);
}
