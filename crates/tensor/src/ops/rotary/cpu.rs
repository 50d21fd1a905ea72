//! Rotations on the host, one task per block of rows.

use device::parallel::{for_pieces, simd};

use super::angles::Rotation;
use crate::ops::rows;

/// Cosines and sines for every row.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Angles<'a> {
    pub(in crate::ops) table: &'a [f32],
    pub(in crate::ops) documents: Option<&'a [u32]>,
    /// Rows in a sequence.
    pub(in crate::ops) time: usize,
    /// Number of leading elements of a head that are rotated.
    pub(in crate::ops) width: usize,
}

impl<'a> Angles<'a> {
    /// Returns the cosines and the sines of a row.
    #[inline(always)]
    pub(in crate::ops) fn row(&self, row: usize) -> (&'a [f32], &'a [f32]) {
        let first = self.documents.map_or(0, |documents| documents[row]);
        let position = ((row % self.time) as u32).wrapping_sub(first) as usize;
        self.table[position * self.width..][..self.width].split_at(self.width / 2)
    }
}

/// Rotates the first `heads` heads of `head_width` elements in rows of `columns`.
pub(in crate::ops) fn rotate(
    x_blc: &mut [f32],
    columns: usize,
    [heads, head_width]: [usize; 2],
    angles: Angles<'_>,
    (rotation, interleaved): (Rotation, bool),
) {
    let per_task = rows::per_task(columns);
    for_pieces(x_blc, per_task * columns, |index, x| {
        simd(
            #[inline(always)]
            || {
                for (row, x) in x.chunks_exact_mut(columns).enumerate() {
                    let at = angles.row(index * per_task + row);
                    for head in x.chunks_exact_mut(head_width).take(heads) {
                        let head = &mut head[..angles.width];
                        match interleaved {
                            true => rotate_neighbours(head, at, rotation),
                            false => rotate_head(head, at, rotation),
                        }
                    }
                }
            },
        );
    });
}

#[inline(always)]
pub(in crate::ops) fn rotate_head(head: &mut [f32], (cosines, sines): (&[f32], &[f32]), rotation: Rotation) {
    let (low, high) = head.split_at_mut(cosines.len());
    let sign = rotation.sign();
    for (((low, high), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
        [*low, *high] = rotated([*low, *high], *cosine, sign * sine);
    }
}

/// Rotates each pair of neighbouring elements.
#[inline(always)]
fn rotate_neighbours(head: &mut [f32], (cosines, sines): (&[f32], &[f32]), rotation: Rotation) {
    let sign = rotation.sign();
    for ((pair, cosine), sine) in head.as_chunks_mut().0.iter_mut().zip(cosines).zip(sines) {
        *pair = rotated(*pair, *cosine, sign * sine);
    }
}

#[inline(always)]
fn rotated([a, b]: [f32; 2], cosine: f32, sine: f32) -> [f32; 2] {
    [a.mul_add(cosine, -(b * sine)), b.mul_add(cosine, a * sine)]
}
