//! Packed rows spread as blocks of a matrix that is 0 elsewhere, each block in its own columns. So the
//! low-rank adapters of a fused layer become one matrix.

mod block;
pub(super) mod cuda;

use std::ops::Range;

use device::{Backend, Category, Request};

use self::block::Block;
use super::{GradientTarget, check};
use crate::{Result, Tensor};

/// Spreads `scale` · `packed [rows, width]` over a matrix `[outputs, ranges.len() · width]` that is 0
/// elsewhere. Block i is the next `ranges[i].len()` packed rows; it goes to rows `ranges[i]` and columns `i ·
/// width..(i + 1) · width`.
///
/// # Errors
/// Rows that `packed` or the matrix does not have, a type that operators do not compute with, out of memory.
pub fn spread(packed: &Tensor, ranges: &[Range<usize>], outputs: usize, scale: f32) -> Result<Tensor> {
    const OPERATOR: &str = "blocks.spread";
    let dtype = check::computed(OPERATOR, &[("packed", packed)])?;
    let shape = [outputs, ranges.len() * packed.shape().columns()];
    let request = Request::new(Category::Activation, OPERATOR);
    let matrix = Tensor::empty(packed.device(), shape, dtype, request)?;
    for block in blocks(OPERATOR, packed, &matrix, ranges)? {
        match packed.device().backend() {
            Backend::Meta => {}
            Backend::Cuda => cuda::spread(OPERATOR, packed, &matrix, block, scale)?,
            Backend::Cpu => spread_on_host(packed, &matrix, block, scale)?,
        }
    }
    Ok(matrix)
}

/// Computes the gradient of [`spread`]: packed `[rows, width]` (+)= `scale` · the blocks of `matrix`, of the
/// same type.
pub fn gather(matrix: &Tensor, ranges: &[Range<usize>], scale: f32, packed: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "blocks.gather";
    check::computed(OPERATOR, &[("matrix", matrix), ("packed", &packed.tensor)])?;
    check::rank(OPERATOR, "matrix", matrix, 2)?;
    for block in blocks(OPERATOR, &packed.tensor, matrix, ranges)? {
        match matrix.device().backend() {
            Backend::Meta => {}
            Backend::Cuda => cuda::gather(OPERATOR, matrix, packed, block, scale)?,
            Backend::Cpu => gather_on_host(matrix, packed, block, scale)?,
        }
    }
    Ok(())
}

fn blocks<'a>(
    operator: &'static str,
    packed: &Tensor,
    matrix: &Tensor,
    ranges: &'a [Range<usize>],
) -> Result<Vec<Block<'a>>> {
    let outputs = matrix.shape().rows();
    let width = packed.shape().columns();
    check::shape(operator, "packed", packed, [ranges.iter().map(Range::len).sum(), width])?;
    check::shape(operator, "matrix", matrix, [outputs, ranges.len() * width])?;
    let mut before = 0;
    let block = |(index, range): (usize, &'a Range<usize>)| {
        if range.end > outputs || range.start > range.end {
            return Err(check::wrong(operator, "matrix", matrix, format!("rows {range:?}")));
        }
        let block = Block { index, range, before, width };
        before += range.len();
        Ok(block)
    };
    ranges.iter().enumerate().map(block).collect()
}

fn spread_on_host(packed: &Tensor, matrix: &Tensor, block: Block<'_>, scale: f32) -> Result<()> {
    let Block { index, range, before, width } = block;
    let packed = packed.values()?;
    let columns = matrix.shape().columns();
    for (row, to) in matrix.values_mut()?.chunks_mut(columns).enumerate() {
        let to = &mut to[index * width..][..width];
        match range.contains(&row) {
            true => {
                let from = &packed[(before + row - range.start) * width..][..width];
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
            }
            false => to.fill(0.0),
        }
    }
    Ok(())
}

fn gather_on_host(matrix: &Tensor, packed: &GradientTarget, block: Block<'_>, scale: f32) -> Result<()> {
    let Block { index, range, before, width } = block;
    let columns = matrix.shape().columns();
    let matrix = matrix.values()?;
    let mut target = packed.tensor.values_mut()?;
    for (offset, row) in range.clone().enumerate() {
        let from = &matrix[row * columns + index * width..][..width];
        let to = &mut target[(before + offset) * width..][..width];
        for (to, from) in to.iter_mut().zip(from) {
            *to = if packed.accumulate { *to + scale * from } else { scale * from };
        }
    }
    Ok(())
}
