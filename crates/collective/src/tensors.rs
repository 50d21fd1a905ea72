//! Collectives of tensors, with results of their own.
//!
//! They run on the exchange stream, while the compute stream goes on. Compute waits where it first uses a
//! result, or where the collective is dropped ([`UnderWay`]). Sums are added in the tree of
//! [`RankTree::balanced`], on every transport with the same bits.

use device::{Arrival, Backend, Category, DType, Request, StreamKind};
use tensor::ops::rounded_sum;
use tensor::{Shape, Tensor, TensorError};

use crate::data::DataPlane;
use crate::error::{CollectiveError, Result};
use crate::rank_tree::RankTree;
use crate::tree::{TreeSum, exchange_parts, scatter_sum, tree_sums};

const STREAM: StreamKind = StreamKind::Exchange;

/// A collective that may go on. It keeps what the collective reads; when it is dropped, compute enqueued from
/// then on waits.
#[derive(Debug)]
#[must_use = "compute waits for a collective that is dropped"]
pub struct UnderWay {
    /// `None` where a collective ends before its call returns.
    arrival: Option<Arrival>,
    reads: Vec<Tensor>,
}

impl UnderWay {
    /// Runs `work` on the exchange stream after all compute so far. It reads `reads` and fills `fills`.
    fn start(
        fills: &Tensor,
        reads: Vec<Tensor>,
        work: impl FnOnce(StreamKind) -> Result<()>,
    ) -> Result<Self> {
        let device = fills.device();
        let of = TensorError::from;
        let arrival = match device.backend() {
            Backend::Meta => work(STREAM).map(|()| None)?,
            Backend::Cpu => device.noted(STREAM, || work(STREAM)).map_err(of)?.map(|()| None)?,
            Backend::Cuda => {
                let computed = device.record(StreamKind::Compute).map_err(of)?;
                device.wait(STREAM, &computed).map_err(of)?;
                work(STREAM)?;
                let arrival = device.arrival(STREAM).map_err(of)?;
                fills.arrives(&arrival);
                Some(arrival)
            }
        };
        Ok(UnderWay { arrival, reads })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let (Some(arrival), Some(read)) = (&self.arrival, self.reads.first()) {
            read.device().await_arrival(arrival);
        }
    }
}

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
    let scratch = scratch(&padded)?;
    let tree = RankTree::balanced(plane.world_size());
    drop(UnderWay::start(&padded, vec![scratch.clone()], |stream| {
        let sum = TreeSum { parts: std::slice::from_ref(&padded), scratch: &scratch, everywhere: true };
        tree_sums(plane, &[sum], &tree, true, stream)
    })?);
    Ok(output)
}

/// The rows of `x [rows, ..]` of all ranks, in their order: `[ranks · rows, ..]`.
///
/// # Errors
/// A scalar; out of memory; a failed collective.
pub fn all_gather(x: &Tensor, plane: &mut dyn DataPlane, request: Request) -> Result<Tensor> {
    start_all_gather(x, plane, request).map(|(rows, _)| rows)
}

/// [`all_gather`] that may go on.
///
/// # Errors
/// As for [`all_gather`].
pub fn start_all_gather(
    x: &Tensor,
    plane: &mut dyn DataPlane,
    request: Request,
) -> Result<(Tensor, UnderWay)> {
    let rows = first(x)? * plane.world_size();
    let output = Tensor::empty(x.device(), with_rows(x, rows)?, x.dtype(), request)?;
    let work = |stream| plane.all_gather(x.region(), output.region(), stream);
    let under_way = UnderWay::start(&output, vec![x.clone()], work)?;
    Ok((output, under_way))
}

/// This rank's part of the rows of the sum of `x [ranks · rows, ..]` over ranks: `[rows, ..]`, f32, bf16 or
/// f16.
///
/// # Errors
/// Rows that the ranks do not divide; out of memory; a failed collective.
pub fn reduce_scatter(x: &Tensor, plane: &mut dyn DataPlane, request: Request) -> Result<Tensor> {
    start_reduce_scatter(x, plane, None, x.dtype(), request).map(|(rows, _)| rows)
}

/// [`reduce_scatter`] that may go on. The sum plus `bias [width]`, of type `dtype`, is rounded to that type;
/// `x` is f32 if there is a bias or another type.
///
/// # Errors
/// As for [`reduce_scatter`] and [`rounded_sum::forward`].
pub fn start_reduce_scatter(
    x: &Tensor,
    plane: &mut dyn DataPlane,
    bias: Option<&Tensor>,
    dtype: DType,
    request: Request,
) -> Result<(Tensor, UnderWay)> {
    let (rows, ranks) = (first(x)?, plane.world_size());
    if !rows.is_multiple_of(ranks) {
        return Err(refused(x, format!("a number of rows that {ranks} ranks divide")));
    }
    let output = Tensor::empty(x.device(), with_rows(x, rows / ranks)?, dtype, request)?;
    if x.dtype() == DType::F32 && ranks.is_power_of_two() && ranks <= rounded_sum::PARTS {
        return start_in_one_pass(x, plane, bias, output);
    }
    let is_sum = bias.is_none() && dtype == x.dtype();
    let sum = match is_sum {
        true => output.clone(),
        false => Tensor::empty(x.device(), output.shape(), x.dtype(), request)?,
    };
    let (flat, scratch) = (sum.reshape([sum.elements()])?, scratch(x)?);
    let mut reads = vec![x.clone(), scratch.clone()];
    reads.extend((!is_sum).then(|| sum.clone()).into_iter().chain(bias.cloned()));
    let under_way = UnderWay::start(&output, reads, |stream| {
        scatter_sum(plane, (x, &flat), &scratch, stream)?;
        match is_sum {
            true => Ok(()),
            false => Ok(rounded_sum::into_on(std::slice::from_ref(&sum), bias, &output, stream)?),
        }
    })?;
    Ok((output, under_way))
}

/// [`start_reduce_scatter`] of up to eight ranks, a power of two, whose balanced tree is that of
/// [`rounded_sum`]: one pass over the parts adds and rounds them.
fn start_in_one_pass(
    x: &Tensor,
    plane: &mut dyn DataPlane,
    bias: Option<&Tensor>,
    output: Tensor,
) -> Result<(Tensor, UnderWay)> {
    let scratch = scratch(x)?;
    let mut reads = vec![x.clone(), scratch.clone()];
    reads.extend(bias.cloned());
    let under_way = UnderWay::start(&output, reads, |stream| {
        let parts = exchange_parts(plane, x, &scratch, stream)?;
        let rows = parts.iter().map(|part| part.reshape(output.shape()));
        let rows = rows.collect::<std::result::Result<Vec<_>, TensorError>>()?;
        Ok(rounded_sum::into_on(&rows, bias, &output, stream)?)
    })?;
    Ok((output, under_way))
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
    drop(UnderWay::start(&output, vec![x.clone()], |stream| {
        plane.exchange(&[(peer(shift), x.region())], &[(peer(-shift), output.region())], stream)
    })?);
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
