//! Embedding on the host.

use device::parallel::{for_pieces, simd};

use super::sizes::{ABSENT, Sizes};
use crate::ops::rows;

/// Approximate number of tasks that compute a table's gradient. Each task reads all tokens.
const TABLE_TASKS: usize = 64;

pub(super) fn forward(
    tokens_bl: &[u32],
    table_vd: &[f32],
    positions_ld: Option<&[f32]>,
    out_bld: &mut [f32],
    sizes: Sizes,
) {
    let width = sizes.width;
    let per_task = rows::per_task(sizes.width);
    for_pieces(out_bld, per_task * width, |index, out| {
        simd(|| {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let row = index * per_task + row;
                if tokens_bl[row] == ABSENT {
                    match positions_ld {
                        Some(positions_ld) => {
                            out.copy_from_slice(&positions_ld[row % sizes.time * width..][..width]);
                        }
                        None => out.fill(-0.0),
                    }
                    continue;
                }
                let token = &table_vd[tokens_bl[row] as usize * width..][..width];
                let Some(positions_ld) = positions_ld else {
                    out.copy_from_slice(token);
                    continue;
                };
                let position = &positions_ld[row % sizes.time * width..][..width];
                for ((out, token), position) in out.iter_mut().zip(token).zip(position) {
                    *out = token + position;
                }
            }
        });
    });
}

pub(super) fn table_gradient(
    dy_bld: &[f32],
    (tokens_bl, padding): (&[u32], Option<u32>),
    table_vd: &mut [f32],
    accumulate: bool,
    sizes: Sizes,
) {
    let width = sizes.width;
    let rows = sizes.vocab.div_ceil(TABLE_TASKS);
    for_pieces(table_vd, rows * width, |index, table| {
        simd(|| {
            if !accumulate {
                table.fill(0.0);
            }
            let first = index * rows;
            let own = first..first + table.len() / width;
            let used = tokens_bl.iter().enumerate().filter(|(_, token)| Some(**token) != padding);
            for (row, token) in used {
                let token = *token as usize;
                if own.contains(&token) {
                    let target = &mut table[(token - first) * width..][..width];
                    add(target, &dy_bld[row * width..][..width]);
                }
            }
        });
    });
}

pub(super) fn position_gradient(dy_bld: &[f32], positions_ld: &mut [f32], accumulate: bool, sizes: Sizes) {
    let width = sizes.width;
    let rows = rows::per_task(width * sizes.batch);
    for_pieces(positions_ld, rows * width, |index, positions| {
        simd(|| {
            for (row, target) in positions.chunks_exact_mut(width).enumerate() {
                let time = index * rows + row;
                if !accumulate {
                    target.fill(0.0);
                }
                let batches = if time < sizes.time { sizes.batch } else { 0 };
                for batch in 0..batches {
                    add(target, &dy_bld[(batch * sizes.time + time) * width..][..width]);
                }
            }
        });
    });
}

#[inline(always)]
fn add(target: &mut [f32], source: &[f32]) {
    target.iter_mut().zip(source).for_each(|(target, source)| *target += source);
}
