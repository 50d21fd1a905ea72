//! Small matmuls inside a tile, with all operands on the stack.
//!
//! The right operand is copied into a [`Panel`], so that the inner loop has fixed lengths and stays in
//! registers. Results beyond the operand's columns are unused. Terms are added in the order of the inner
//! dimension.

use std::ops::Range;

/// Positions of one side of a tile.
pub(super) const BLOCK: usize = 64;
/// Columns of a panel.
pub(super) const WIDE: usize = 32;
/// Rows that the inner loop computes at once.
const GROUP: usize = 4;

/// Scores of a block of queries and a block of keys; rows are [`BLOCK`] elements apart.
pub(super) type Tile = [f32; BLOCK * BLOCK];

/// A matrix in a slice, with rows `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) stride: usize,
}

impl<'a> Matrix<'a> {
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.columns]
    }

    /// Returns columns `first..first + count`, cut off at the last column.
    #[inline(always)]
    fn part(&self, first: usize, count: usize) -> Self {
        Matrix { data: &self.data[first..], columns: count.min(self.columns - first), ..*self }
    }
}

/// At most [`BLOCK`] rows of [`WIDE`] columns of a right operand. Elements outside the operand are stale.
pub(super) struct Panel([[f32; WIDE]; BLOCK]);

impl Panel {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Panel([[0.0; WIDE]; BLOCK])
    }

    /// Copies the first [`WIDE`] columns of `source`, or fewer if it has fewer.
    #[inline(always)]
    fn take_rows(&mut self, source: Matrix<'_>) {
        for (row, target) in self.0.iter_mut().enumerate().take(source.rows) {
            let row = source.row(row);
            match row.first_chunk::<WIDE>() {
                Some(row) => *target = *row,
                None => target.iter_mut().zip(row).for_each(|(target, value)| *target = *value),
            }
        }
    }

    /// Copies [`WIDE`] rows of `source` from `first` on, or as many as exist, transposed.
    #[inline(always)]
    fn take_columns(&mut self, source: Matrix<'_>, first: usize) {
        for (column, row) in (first..source.rows.min(first + WIDE)).enumerate() {
            for (target, value) in self.0.iter_mut().zip(source.row(row)) {
                target[column] = *value;
            }
        }
    }
}

/// Computes tile = a · bᵀ for at most [`BLOCK`] rows each. Undefined: columns beyond the rows of b, and with
/// `causal` the hidden scores.
#[inline(always)]
pub(super) fn scores(a: Matrix<'_>, b: Matrix<'_>, causal: bool, tile: &mut Tile, panel: &mut Panel) {
    for depth in (0..a.columns).step_by(BLOCK) {
        let a = a.part(depth, BLOCK);
        let b = b.part(depth, BLOCK);
        for first in (0..b.rows).step_by(WIDE) {
            panel.take_columns(b, first);
            for row in (0..a.rows).step_by(GROUP) {
                if causal && first >= row + GROUP {
                    continue;
                }
                let sums = by_rows(a, row, 0..a.columns, panel);
                let out = &mut tile[first..];
                store(&sums, out, row, a.rows, BLOCK, WIDE, depth > 0);
            }
        }
    }
}

/// Computes out (+)= tile · b: row i of b is multiplied by column i of the tile. With `causal`, row i of the
/// tile uses columns 0 to i.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "operands and target are distinct arguments")]
pub(super) fn weighted(
    tile: &Tile,
    rows: usize,
    b: Matrix<'_>,
    causal: bool,
    out: &mut [f32],
    stride: usize,
    accumulate: bool,
    panel: &mut Panel,
) {
    let tile = Matrix { data: tile, rows, columns: b.rows, stride: BLOCK };
    for first in (0..b.columns).step_by(WIDE) {
        let part = b.part(first, WIDE);
        panel.take_rows(part);
        for row in (0..rows).step_by(GROUP) {
            let end = if causal { b.rows.min(row + GROUP) } else { b.rows };
            let sums = by_rows(tile, row, 0..end, panel);
            store(&sums, &mut out[first..], row, rows, stride, part.columns, accumulate);
        }
    }
}

/// Computes out (+)= tileᵀ · b: row i of b is multiplied by row i of the tile. With `causal`, column i of the
/// tile uses rows from i on.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "operands and target are distinct arguments")]
pub(super) fn weighted_transposed(
    tile: &Tile,
    columns: usize,
    b: Matrix<'_>,
    causal: bool,
    out: &mut [f32],
    stride: usize,
    accumulate: bool,
    panel: &mut Panel,
) {
    for first in (0..b.columns).step_by(WIDE) {
        let part = b.part(first, WIDE);
        panel.take_rows(part);
        for column in (0..columns).step_by(GROUP) {
            let depth = if causal { column.min(b.rows)..b.rows } else { 0..b.rows };
            let sums = by_columns(tile, column, depth, panel);
            store(&sums, &mut out[first..], column, columns, stride, part.columns, accumulate);
        }
    }
}

type Sums = [[f32; WIDE]; GROUP];

/// Computes rows `first..first + GROUP` of a · panel over `depth`; indices beyond the last row repeat it.
#[inline(always)]
fn by_rows(a: Matrix<'_>, first: usize, depth: Range<usize>, panel: &Panel) -> Sums {
    let row = |offset: usize| &a.row((first + offset).min(a.rows - 1))[depth.clone()];
    let left = row(0).iter().zip(row(1)).zip(row(2)).zip(row(3));
    let mut sums = [[0.0; WIDE]; GROUP];
    for ((((a, b), c), d), right) in left.zip(&panel.0[depth.clone()]) {
        multiply_add(&mut sums, [*a, *b, *c, *d], right);
    }
    sums
}

/// Computes rows `first..first + GROUP` of tileᵀ · panel over `depth`.
#[inline(always)]
fn by_columns(tile: &Tile, first: usize, depth: Range<usize>, panel: &Panel) -> Sums {
    let mut sums = [[0.0; WIDE]; GROUP];
    let (lines, _) = tile.as_chunks::<BLOCK>();
    for (line, right) in lines[depth.clone()].iter().zip(&panel.0[depth]) {
        if let Some(left) = line[first..].first_chunk::<GROUP>() {
            multiply_add(&mut sums, *left, right);
        }
    }
    sums
}

#[inline(always)]
fn multiply_add(sums: &mut Sums, left: [f32; GROUP], right: &[f32; WIDE]) {
    for (sums, left) in sums.iter_mut().zip(left) {
        *sums = std::array::from_fn(|column| left.mul_add(right[column], sums[column]));
    }
}

/// Writes the first `columns` sums of each row from `first` on. Rows that do not exist are skipped.
#[inline(always)]
fn store(
    sums: &Sums,
    out: &mut [f32],
    first: usize,
    rows: usize,
    stride: usize,
    columns: usize,
    accumulate: bool,
) {
    for (row, sums) in (first..rows).zip(sums) {
        let out = &mut out[row * stride..][..columns];
        if accumulate {
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        } else {
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = *sum);
        }
    }
}
