//! Collectives of tensors, with results of their own, on the compute stream.
//!
//! Sums are added in the tree of [`RankTree::balanced`], on every transport with the same bits.

use device::{Category, Request, StreamKind};
use tensor::{Shape, Tensor, TensorError};

use crate::data::DataPlane;
use crate::error::{CollectiveError, Result};
use crate::rank_tree::RankTree;
use crate::tree::{TreeSum, scatter_sum, tree_sums};

/// Number of this rank's first part, where each rank has `each` parts in the order of the ranks.
pub fn first_part(plane: &dyn DataPlane, each: usize) -> usize {
    plane.rank() * each
}

/// The sum of `x` over ranks, f32, bf16 or f16.
///
/// # Errors
/// Out of memory; a failed collective.
pub fn all_reduce(x: &Tensor, plane: &mut dyn DataPlane, request: Request) -> Result<Tensor> {
    // The sum is made in one shard for each rank, so that its length must divide.
    let elements = x.elements().next_multiple_of(plane.world_size());
    let padded = match elements == x.elements() {
        true => Tensor::empty(x.device(), [elements], x.dtype(), request)?,
        false => Tensor::zeros(x.device(), [elements], x.dtype(), request)?,
    };
    let output = padded.view(0, x.shape())?;
    output.copy_from(x)?;
    let sum = TreeSum { parts: std::slice::from_ref(&padded), scratch: &scratch(&padded)?, everywhere: true };
    let tree = RankTree::balanced(plane.world_size());
    tree_sums(plane, &[sum], &tree, true, StreamKind::Compute)?;
    Ok(output)
}

/// The rows of `x [rows, ..]` of all ranks, in their order: `[ranks · rows, ..]`.
///
/// # Errors
/// A scalar; out of memory; a failed collective.
pub fn all_gather(x: &Tensor, plane: &mut dyn DataPlane, request: Request) -> Result<Tensor> {
    let rows = first(x)? * plane.world_size();
    let output = Tensor::empty(x.device(), with_rows(x, rows)?, x.dtype(), request)?;
    plane.all_gather(x.region(), output.region(), StreamKind::Compute)?;
    Ok(output)
}

/// This rank's part of the rows of the sum of `x [ranks · rows, ..]` over ranks: `[rows, ..]`, f32, bf16 or
/// f16.
///
/// # Errors
/// Rows that the ranks do not divide; out of memory; a failed collective.
pub fn reduce_scatter(x: &Tensor, plane: &mut dyn DataPlane, request: Request) -> Result<Tensor> {
    let (rows, ranks) = (first(x)?, plane.world_size());
    if !rows.is_multiple_of(ranks) {
        return Err(refused(x, format!("a number of rows that {ranks} ranks divide")));
    }
    let output = Tensor::empty(x.device(), with_rows(x, rows / ranks)?, x.dtype(), request)?;
    let flat = output.reshape([output.elements()])?;
    scatter_sum(plane, (x, &flat), &scratch(x)?, StreamKind::Compute)?;
    Ok(output)
}

/// `x` of the rank that is `shift` before this one, where the first rank follows the last.
///
/// # Errors
/// Out of memory; a failed collective.
pub fn shift(x: &Tensor, plane: &mut dyn DataPlane, shift: isize, request: Request) -> Result<Tensor> {
    let output = Tensor::empty(x.device(), x.shape(), x.dtype(), request)?;
    let (rank, ranks) = (plane.rank().cast_signed(), plane.world_size().cast_signed());
    let peer = |shift: isize| (rank + shift).rem_euclid(ranks).cast_unsigned();
    if peer(shift) == plane.rank() {
        output.copy_from(x)?;
        return Ok(output);
    }
    plane.exchange(&[(peer(shift), x.region())], &[(peer(-shift), output.region())], StreamKind::Compute)?;
    Ok(output)
}

/// The size of the first dimension.
fn first(x: &Tensor) -> Result<usize> {
    x.shape().dims().first().copied().ok_or_else(|| refused(x, "at least one dimension".to_owned()))
}

fn with_rows(x: &Tensor, rows: usize) -> Result<Shape> {
    x.shape().with(0, rows).ok_or_else(|| refused(x, "at least one dimension".to_owned()))
}

fn refused(x: &Tensor, expected: String) -> CollectiveError {
    TensorError::Shape { operator: "collective", operand: "x", actual: x.shape(), expected }.into()
}

/// A workspace as long as `like`.
fn scratch(like: &Tensor) -> Result<Tensor> {
    let request = Request::new(Category::Communication, "collective_scratch");
    Ok(Tensor::empty(like.device(), [like.elements()], like.dtype(), request)?)
}
