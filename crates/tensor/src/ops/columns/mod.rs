//! Sums over the rows of a matrix: gradients of biases and of norms' parameters.

pub(crate) mod cuda;
pub(crate) mod workspace;

use device::parallel::{for_pieces, simd};

/// Columns of one task: a few cache lines of every row.
const WIDTH: usize = 64;
/// Rows whose sum is computed before it is added to the total, so that the rounding error grows with the
/// number of groups instead of rows.
const GROUP: usize = 64;

/// out[c] (+)= Σ over rows r of the terms of row r, where `add(r, columns, partial)` adds row r's terms of
/// `columns` to `partial`. Rows are added in order, in groups of [`GROUP`].
pub(crate) fn sum_rows(
    rows: usize,
    out: &mut [f32],
    accumulate: bool,
    add: impl Fn(usize, std::ops::Range<usize>, &mut [f32]) + Sync,
) {
    for_pieces(out, WIDTH, |index, out| {
        simd(
            #[inline(always)]
            || {
                let columns = index * WIDTH..index * WIDTH + out.len();
                let mut total = [0.0f32; WIDTH];
                for first in (0..rows).step_by(GROUP) {
                    let mut partial = [0.0f32; WIDTH];
                    for row in first..rows.min(first + GROUP) {
                        add(row, columns.clone(), &mut partial[..out.len()]);
                    }
                    total.iter_mut().zip(&partial).for_each(|(total, partial)| *total += partial);
                }
                for (out, total) in out.iter_mut().zip(&total) {
                    *out = if accumulate { *out + total } else { *total };
                }
            },
        );
    });
}
