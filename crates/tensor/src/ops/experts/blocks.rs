//! Block matrices of low-rank adapters of experts, which adapt some equal parts of each expert's outputs,
//! such as gate and up.

use device::{Backend, Category, Request};

use super::cuda;
use super::parts::AdaptedParts;
use crate::ops::{GradientTarget, check};
use crate::{Result, Tensor};

/// Spreads `scale` · `packed [experts · adapted · rows, rank]` over one matrix per expert, `[experts · all ·
/// rows, adapted · rank]`, which is 0 elsewhere. An adapted part keeps its rows and has columns of its own.
pub fn spread(packed: &Tensor, parts: &AdaptedParts, scale: f32) -> Result<Tensor> {
    const OPERATOR: &str = "experts.spread";
    let dtype = check::computed(OPERATOR, &[("packed", packed)])?;
    let (rows, rank) = sizes(OPERATOR, packed, parts)?;
    let shape = [parts.experts * parts.all * rows, parts.adapted.len() * rank];
    let request = Request::new(Category::Activation, OPERATOR);
    let matrix = Tensor::zeros(packed.device(), shape, dtype, request)?;
    match packed.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let packed = packed.values()?;
            let mut matrix = matrix.values_mut()?;
            for_rows(parts, [rows, rank], |packed_at, matrix_at| {
                let from = &packed[packed_at..][..rank];
                let to = &mut matrix[matrix_at..][..rank];
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
            });
        }
        Backend::Cuda => cuda::spread(OPERATOR, packed, (parts, rows), scale, &matrix)?,
    }
    Ok(matrix)
}

/// Computes the gradient of [`spread`]: packed (+)= `scale` · the blocks of `matrix`, of the same type.
pub fn collect(matrix: &Tensor, parts: &AdaptedParts, scale: f32, packed: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "experts.collect";
    check::computed(OPERATOR, &[("matrix", matrix), ("packed", &packed.tensor)])?;
    let (rows, rank) = sizes(OPERATOR, &packed.tensor, parts)?;
    let shape = [parts.experts * parts.all * rows, parts.adapted.len() * rank];
    check::shape(OPERATOR, "matrix", matrix, shape)?;
    match matrix.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let matrix = matrix.values()?;
            let mut target = packed.tensor.values_mut()?;
            for_rows(parts, [rows, rank], |packed_at, matrix_at| {
                let from = &matrix[matrix_at..][..rank];
                let to = &mut target[packed_at..][..rank];
                for (to, from) in to.iter_mut().zip(from) {
                    *to = if packed.accumulate { *to + scale * from } else { scale * from };
                }
            });
            Ok(())
        }
        Backend::Cuda => cuda::collect(OPERATOR, matrix, (parts, rows), scale, packed),
    }
}

/// Checks `packed`; returns the rows of a part and the rank.
fn sizes(operator: &'static str, packed: &Tensor, parts: &AdaptedParts) -> Result<(usize, usize)> {
    let blocks = parts.experts * parts.adapted.len();
    let rows = packed.shape().rows();
    if blocks == 0 || !rows.is_multiple_of(blocks) {
        return Err(check::wrong(operator, "packed", packed, format!("rows of {blocks} equal blocks")));
    }
    Ok((rows / blocks, packed.shape().columns()))
}

/// Calls `body` with the index of the first element of each packed row, and the index where that row starts
/// in the matrix.
fn for_rows(parts: &AdaptedParts, [rows, rank]: [usize; 2], mut body: impl FnMut(usize, usize)) {
    let count = parts.adapted.len();
    for expert in 0..parts.experts {
        for (index, part) in parts.adapted.iter().enumerate() {
            for row in 0..rows {
                let packed = (expert * count + index) * rows + row;
                let matrix = (expert * parts.all + part) * rows + row;
                body(packed * rank, (matrix * count + index) * rank);
            }
        }
    }
}
