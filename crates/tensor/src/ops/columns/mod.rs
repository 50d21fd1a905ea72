//! Sums over the rows of a matrix: gradients of biases and of norms' parameters.

pub(crate) mod cuda;
pub(crate) mod workspace;

use device::parallel::{for_pieces, simd};

/// Columns of one task: a few cache lines of every row.
const WIDTH: usize = 64;
/// Rows that are summed before they are added to the total. Thus the rounding error grows with the number of
/// groups, not of rows.
const GROUP: usize = 64;

/// Computes out (+)= the sum over all rows, in order and in groups of [`GROUP`]. `add(r, columns, partial)`
/// adds the terms of row r in `columns` to `partial`.
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
