//! Collectives of tensors, with newly allocated results.
//!
//! Collectives run on the exchange stream, and the compute stream waits for it, so that a step's timing shows
//! the wait. Sums follow the tree of [`RankTree::balanced`], with the same bits on every transport.

use device::{Arrival, Backend, Category, DType, Device, Request, StreamKind};
use tensor::ops::rounded_sum;
use tensor::{Shape, Tensor, TensorError};

use crate::collective::Collective;
use crate::error::{CollectiveError, Result};
use crate::process_group::ProcessGroup;
use crate::rank_tree::RankTree;
use crate::tree::{TreeSum, exchange_parts, scatter_sum, tree_sums};

const STREAM: StreamKind = StreamKind::Exchange;

/// Runs `work` on the exchange stream, after all earlier compute and before all later compute.
fn exchanged(device: &Device, work: impl FnOnce(StreamKind) -> Result<()>) -> Result<()> {
    if let Some(arrival) = begin_exchange(device, work)? {
        device.await_arrival(&arrival);
    }
    Ok(())
}

/// Runs `work` on the exchange stream, after all earlier compute. Returns the event to wait for; `None` if
/// the work is done.
fn begin_exchange(device: &Device, work: impl FnOnce(StreamKind) -> Result<()>) -> Result<Option<Arrival>> {
    let wrap = TensorError::from;
    match device.backend() {
        Backend::Meta => work(STREAM)?,
        Backend::Cpu => device.noted(STREAM, || work(STREAM)).map_err(wrap)??,
        Backend::Cuda => {
            let computed = device.record(StreamKind::Compute).map_err(wrap)?;
            device.wait(STREAM, &computed).map_err(wrap)?;
            work(STREAM)?;
            return Ok(Some(device.arrival(STREAM).map_err(wrap)?));
        }
    }
    Ok(None)
}

/// A sum over ranks in progress on the exchange stream. Compute enqueued after it is dropped starts after the
/// sum.
#[derive(Debug)]
pub struct PendingSum {
    sum: Tensor,
    /// Buffers in use by the exchange stream: the padded sum and a workspace.
    _buffers: [Tensor; 2],
    arrival: Option<Arrival>,
}

impl PendingSum {
    /// Returns the sum; later compute starts after it is complete.
    #[must_use]
    pub fn wait(self) -> Tensor {
        self.sum.clone()
    }
}

impl Drop for PendingSum {
    fn drop(&mut self) {
        if let Some(arrival) = &self.arrival {
            self.sum.device().await_arrival(arrival);
        }
    }
}

/// Index of this rank's first part, if each rank has `each` parts in rank order.
pub fn first_part(group: &ProcessGroup, each: usize) -> usize {
    group.rank() * each
}

/// Returns the sum of `x` over ranks; f32, bf16 or f16.
pub fn all_reduce(x: &Tensor, group: &ProcessGroup, request: Request) -> Result<Tensor> {
    Ok(sum_of(padded_copy(x, group, request)?, x.shape(), group, true)?.wait())
}

/// Starts summing `x` over ranks, concurrently with compute; f32, bf16 or f16. The sum overwrites `x` if its
/// elements divide evenly among the ranks.
pub fn begin_all_reduce(x: Tensor, group: &ProcessGroup, request: Request) -> Result<PendingSum> {
    let shape = x.shape();
    let padded = match x.elements().is_multiple_of(group.world_size()) {
        true => x.reshape([x.elements()])?,
        false => padded_copy(&x, group, request)?,
    };
    drop(x);
    sum_of(padded, shape, group, false)
}

/// Returns a flat copy of `x`, padded with zeros to a multiple of the number of ranks, so that each rank sums
/// an equal shard.
fn padded_copy(x: &Tensor, group: &ProcessGroup, request: Request) -> Result<Tensor> {
    let elements = x.elements().next_multiple_of(group.world_size());
    let padded = match elements == x.elements() {
        true => Tensor::empty(x.device(), [elements], x.dtype(), request)?,
        false => Tensor::zeros(x.device(), [elements], x.dtype(), request)?,
    };
    padded.view(0, x.shape())?.copy_from(x)?;
    Ok(padded)
}

/// Starts to overwrite `padded` with its sum over ranks. `alone`: the device has no other work meanwhile.
fn sum_of(padded: Tensor, shape: Shape, group: &ProcessGroup, alone: bool) -> Result<PendingSum> {
    let sum = padded.view(0, shape)?;
    let scratch = scratch(&padded)?;
    let tree = RankTree::balanced(group.world_size());
    let arrival = begin_exchange(padded.device(), |stream| {
        let sum = TreeSum { parts: std::slice::from_ref(&padded), scratch: &scratch, everywhere: true };
        tree_sums(group, &[sum], &tree, alone, stream)
    })?;
    Ok(PendingSum { sum, _buffers: [padded, scratch], arrival })
}

/// Returns the rows of `x [rows, ..]` of all ranks, in rank order: `[ranks · rows, ..]`.
///
/// # Errors
/// `x` is a scalar, memory is exhausted, or the collective failed.
pub fn all_gather(x: &Tensor, group: &ProcessGroup, request: Request) -> Result<Tensor> {
    let rows = first(x)? * group.world_size();
    let output = Tensor::empty(x.device(), with_rows(x, rows)?, x.dtype(), request)?;
    exchanged(x.device(), |stream| {
        group.run(Collective::AllGather { input: x.region(), output: output.region() }, stream)
    })?;
    Ok(output)
}

/// Returns this rank's rows of the sum of `x [ranks · rows, ..]` over ranks: `[rows, ..]`; f32, bf16 or f16.
///
/// # Errors
/// The rows do not divide among the ranks, memory is exhausted, or the collective failed.
pub fn reduce_scatter(x: &Tensor, group: &ProcessGroup, request: Request) -> Result<Tensor> {
    rounded_reduce_scatter(x, group, None, x.dtype(), request)
}

/// [`reduce_scatter`], plus `bias [width]`, rounded to `dtype`. `x` must be f32 if there is a bias or `dtype`
/// differs.
///
/// # Errors
/// Errors of [`reduce_scatter`] and [`rounded_sum::forward`].
pub fn rounded_reduce_scatter(
    x: &Tensor,
    group: &ProcessGroup,
    bias: Option<&Tensor>,
    dtype: DType,
    request: Request,
) -> Result<Tensor> {
    let rows = first(x)?;
    let ranks = group.world_size();
    if !rows.is_multiple_of(ranks) {
        return Err(refused(x, format!("a number of rows that {ranks} ranks divide")));
    }
    let rows = with_rows(x, rows / ranks)?;
    let is_sum = bias.is_none() && dtype == x.dtype();
    let one_pass = adds_in_one_pass(x, ranks);
    let output = Tensor::empty(x.device(), rows, dtype, request)?;
    let sum = match is_sum || one_pass {
        true => output.clone(),
        false => Tensor::empty(x.device(), rows, x.dtype(), request)?,
    };
    let flat = sum.reshape([sum.elements()])?;
    let scratch = scratch(x)?;
    exchanged(x.device(), |stream| {
        if one_pass {
            let parts = exchange_parts(group, x, &scratch, stream)?;
            let parts = parts.iter().map(|part| part.reshape(rows));
            let parts = parts.collect::<std::result::Result<Vec<_>, TensorError>>()?;
            return Ok(rounded_sum::into_on(&parts, bias, &output, stream)?);
        }
        scatter_sum(group, (x, &flat), &scratch, stream)?;
        match is_sum {
            true => Ok(()),
            false => Ok(rounded_sum::into_on(std::slice::from_ref(&sum), bias, &output, stream)?),
        }
    })?;
    Ok(output)
}

/// Returns whether [`rounded_sum`] adds in the order of the ranks' balanced tree, so that one pass adds and
/// rounds.
fn adds_in_one_pass(x: &Tensor, ranks: usize) -> bool {
    x.dtype() == DType::F32 && ranks.is_power_of_two() && ranks <= rounded_sum::PARTS
}

/// Returns `x` of the rank `shift` before this one, cyclically.
pub fn shift(x: &Tensor, group: &ProcessGroup, shift: isize, request: Request) -> Result<Tensor> {
    let output = Tensor::empty(x.device(), x.shape(), x.dtype(), request)?;
    let rank = group.rank().cast_signed();
    let ranks = group.world_size().cast_signed();
    let peer = |shift: isize| (rank + shift).rem_euclid(ranks).cast_unsigned();
    if peer(shift) == group.rank() {
        output.copy_from(x)?;
        return Ok(output);
    }
    exchanged(x.device(), |stream| {
        let sends = vec![(peer(shift), x.region())];
        let receives = vec![(peer(-shift), output.region())];
        group.run(Collective::Exchange { sends, receives }, stream)
    })?;
    Ok(output)
}

/// Returns the size of the first dimension.
fn first(x: &Tensor) -> Result<usize> {
    x.shape().dims().first().copied().ok_or_else(|| refused(x, "at least one dimension".to_owned()))
}

fn with_rows(x: &Tensor, rows: usize) -> Result<Shape> {
    x.shape().with(0, rows).ok_or_else(|| refused(x, "at least one dimension".to_owned()))
}

fn refused(x: &Tensor, expected: String) -> CollectiveError {
    TensorError::Shape { operator: "collective", operand: "x", actual: x.shape(), expected }.into()
}

/// Allocates a workspace as long as `like`.
fn scratch(like: &Tensor) -> Result<Tensor> {
    let request = Request::new(Category::Communication, "collective_scratch");
    Ok(Tensor::empty(like.device(), [like.elements()], like.dtype(), request)?)
}
