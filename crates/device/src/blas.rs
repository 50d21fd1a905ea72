//! Matmuls on host slices, in an order of additions that depends on shapes only.
//!
//! A matmul is cut into row tiles and into chunks of the inner dimension by shape, never by thread count or
//! cache size. So an element adds its terms in the same order on any number of threads.
#![allow(unsafe_code)] // gemm-f32 takes raw pointers

use rayon::prelude::*;

/// Length of a chunk of the inner dimension. Crate `gemm` never splits it further, because its own chunks are
/// at least as long for any cache size.
const K_CHUNK: usize = 512;
/// Matmuls with fewer multiply-adds run on the calling thread.
const SERIAL_BELOW: usize = 1 << 18;

/// A matrix in a slice: element (row, column) at `row · row_stride + column · column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> MatrixRef<'a> {
    /// Describes a row-major `rows × columns` matrix whose rows are `stride` elements apart.
    pub fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        MatrixRef { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Returns the transpose of the matrix.
    pub fn transposed(self) -> Self {
        MatrixRef {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    fn fits(&self) -> bool {
        let last = |count: usize, stride: usize| count.saturating_sub(1) * stride;
        self.rows == 0
            || self.columns == 0
            || last(self.rows, self.row_stride) + last(self.columns, self.column_stride) < self.data.len()
    }
}

/// Computes `out (+)= alpha · a · b`. `out` is row-major with rows `stride` elements apart. With `accumulate`
/// the result is added to the previous values, else it overwrites them.
///
/// # Panics
/// If the operands' shapes disagree or do not fit their slices: callers check shapes first.
pub fn gemm(
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    out: &mut [f32],
    stride: usize,
    alpha: f32,
    accumulate: bool,
) {
    gemm_then(a, b, out, stride, alpha, accumulate, |_| ());
}

/// Computes [`gemm`]. Calls the epilogue `then` on each finished group of whole rows while it is in the
/// cache. Rows are `stride` elements apart, without a gap after the last.
///
/// # Panics
/// As for [`gemm`].
pub fn gemm_then(
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    out: &mut [f32],
    stride: usize,
    alpha: f32,
    accumulate: bool,
    then: impl Fn(&mut [f32]) + Sync,
) {
    let rows = a.rows;
    let columns = b.columns;
    let inner = a.columns;
    assert!(inner == b.rows && a.fits() && b.fits() && columns <= stride, "operands of a matmul disagree");
    if rows == 0 || columns == 0 {
        return;
    }
    assert!((rows - 1) * stride + columns <= out.len(), "the matmul does not fit its output");
    let out = &mut out[..(rows - 1) * stride + columns];
    let tile = row_tile(rows);
    let body = |(index, out): (usize, &mut [f32])| {
        let first = index * tile;
        tile_product(a, b, first, tile.min(rows - first), out, stride, alpha, accumulate);
        then(out);
    };
    if rows * columns * inner < SERIAL_BELOW {
        out.chunks_mut(tile * stride).enumerate().for_each(body);
    } else {
        out.par_chunks_mut(tile * stride).enumerate().for_each(body);
    }
}

/// Returns the rows of one task, 32 to 256, for about four tasks. Each task packs the whole right operand, so
/// more rows per task reduce that overhead.
fn row_tile(rows: usize) -> usize {
    rows.div_ceil(4).next_multiple_of(32).clamp(32, 256)
}

#[expect(clippy::too_many_arguments, reason = "a tile of a matmul is named by its operands and its position")]
fn tile_product(
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    first_row: usize,
    rows: usize,
    out: &mut [f32],
    stride: usize,
    alpha: f32,
    accumulate: bool,
) {
    let inner = a.columns;
    if inner == 0 && !accumulate {
        out.chunks_mut(stride).for_each(|row| row[..b.columns].fill(0.0));
    }
    for first in (0..inner).step_by(K_CHUNK) {
        let chunk = K_CHUNK.min(inner - first);
        let a_start = &a.data[first_row * a.row_stride + first * a.column_stride..];
        let b_start = &b.data[first * b.row_stride..];
        let a_strides = strides(a);
        let b_strides = strides(b);
        let read = accumulate || first > 0;
        // The kernels want contiguous output columns, so a row-major output is computed as its transpose.
        let (shape, out_strides, left, right) = if stride > 1 {
            let left = (b_start, swap(b_strides));
            let right = (a_start, swap(a_strides));
            ((b.columns, rows), (stride as isize, 1), left, right)
        } else {
            ((rows, b.columns), (1, stride as isize), (a_start, a_strides), (b_start, b_strides))
        };
        // SAFETY: `gemm_then` asserted that both operands and the output hold every element that these sizes
        // and strides reach; `out` is exclusive to this tile; sizes below isize::MAX fit its arguments.
        unsafe {
            gemm_f32::gemm::f32::get_gemm_fn()(
                shape.0,
                shape.1,
                chunk,
                out.as_mut_ptr(),
                out_strides.0,
                out_strides.1,
                read,
                left.0.as_ptr(),
                left.1.0,
                left.1.1,
                right.0.as_ptr(),
                right.1.0,
                right.1.1,
                1.0,
                alpha,
                false,
                false,
                false,
                gemm_common::Parallelism::None,
            );
        }
    }
}

/// Returns the column stride, then the row stride, the order that the kernels expect.
fn strides(matrix: MatrixRef<'_>) -> (isize, isize) {
    (matrix.column_stride as isize, matrix.row_stride as isize)
}

fn swap((columns, rows): (isize, isize)) -> (isize, isize) {
    (rows, columns)
}
