//! Communication among the ranks that hold shards of layers. Sums over shards are added in f32 in a fixed
//! tree, then rounded once.

use collective::{Axis, CollectiveError, ProcessGroup, tensors};
use device::{Category, DType, Request};
use tensor::ops::GradientTarget;
use tensor::{Shape, Tensor, ops};

use crate::error::{AutogradError, Result};
use crate::pass::Pass;
use crate::tape::Tape;

/// The ranks along [`Axis::Tensor`]. By default, all shards are local.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorRanks {
    /// Group of the ranks; `None` if all shards are local.
    group: Option<ProcessGroup>,
    /// Whether rows between layers are sharded over the ranks.
    shards_rows: bool,
}

impl TensorRanks {
    /// Returns the ranks of a tape's pass. `shards_rows`: rows between layers are sharded.
    pub(crate) fn new(tape: &Tape, shards_rows: bool) -> Self {
        Self::of_pass(tape.pass(), shards_rows)
    }

    pub(super) fn of_pass(pass: &Pass, shards_rows: bool) -> Self {
        TensorRanks { group: pass.groups.along(Axis::Tensor).cloned(), shards_rows }
    }

    /// Returns the index of the first of the `local` shards on this rank.
    pub(crate) fn first_shard(&self, local: usize) -> usize {
        self.group.as_ref().map_or(0, |group| tensors::first_part(group, local))
    }

    /// Gathers all rows `[rows, columns]` from the local rows.
    pub(crate) fn gather_rows(&self, x: &Tensor, request: Request) -> Result<Tensor> {
        match &self.group {
            Some(group) if self.shards_rows => {
                let rows = x.reshape([x.shape().rows(), x.shape().columns()])?;
                gathered(&rows, group, request)
            }
            _ => Ok(x.clone()),
        }
    }

    /// Gathers `x [n, ..]` of all ranks in rank order, `[ranks · n, ..]`.
    pub(crate) fn gather(&self, x: Tensor, request: Request) -> Result<Tensor> {
        match &self.group {
            Some(group) => gathered(&x, group, request),
            None => Ok(x),
        }
    }

    /// Sums `parts`, one per local shard, over all shards, and returns the local rows.
    pub(crate) fn sum_rows(&self, parts: Vec<Tensor>, request: Request) -> Result<Tensor> {
        let sum = tree_sum(parts)?;
        let Some(group) = &self.group else { return Ok(sum) };
        if !self.shards_rows {
            return tensors::all_reduce(&sum, group, request).map_err(failed(request));
        }
        let rows = sum.reshape([sum.shape().rows(), sum.shape().columns()])?;
        tensors::reduce_scatter(&rows, group, request).map_err(failed(request))
    }

    /// [`TensorRanks::sum_rows`] of f32 `parts`, plus `bias`, rounded to `dtype`.
    pub(crate) fn rounded_sum_rows(
        &self,
        parts: Vec<Tensor>,
        bias: Option<&Tensor>,
        dtype: DType,
        request: Request,
    ) -> Result<Tensor> {
        let Some(group) = &self.group else {
            return Ok(ops::rounded_sum::forward(&parts, bias, dtype, request)?);
        };
        let sum = ops::rounded_sum::forward(&parts, None, DType::F32, request)?;
        drop(parts);
        if !self.shards_rows {
            let sum = tensors::all_reduce(&sum, group, request).map_err(failed(request))?;
            return Ok(ops::rounded_sum::forward(&[sum], bias, dtype, request)?);
        }
        let rows = sum.reshape([sum.shape().rows(), sum.shape().columns()])?;
        tensors::rounded_reduce_scatter(&rows, group, bias, dtype, request).map_err(failed(request))
    }

    /// Sums `parts`, one per local shard, over all shards.
    pub(crate) fn sum(&self, parts: Vec<Tensor>, request: Request) -> Result<Tensor> {
        let sum = tree_sum(parts)?;
        let Some(group) = &self.group else { return Ok(sum) };
        tensors::all_reduce(&sum, group, request).map_err(failed(request))
    }

    /// Returns the shape of the local rows of an array of all rows.
    pub(crate) fn rows_here(&self, all: &Tensor) -> Shape {
        match &self.group {
            Some(group) if self.shards_rows => {
                let rows = all.shape().rows();
                let columns = all.shape().columns();
                [rows / group.world_size(), columns].into()
            }
            _ => all.shape(),
        }
    }
}

fn gathered(x: &Tensor, group: &ProcessGroup, request: Request) -> Result<Tensor> {
    tensors::all_gather(x, group, request).map_err(failed(request))
}

fn failed(request: Request) -> impl Fn(CollectiveError) -> AutogradError {
    move |source| AutogradError::Collective { operator: request.operator, source }
}

/// Sums tensors of one shape and dtype: adjacent pairs, then adjacent sums, and so on. Overwrites the first
/// tensor if no other shares its storage.
///
/// # Errors
/// There is no tensor, or memory is exhausted.
pub(crate) fn tree_sum(mut parts: Vec<Tensor>) -> Result<Tensor> {
    while parts.len() > 1 {
        let mut level = Vec::with_capacity(parts.len().div_ceil(2));
        let mut pairs = parts.into_iter();
        while let Some(first) = pairs.next() {
            level.push(match pairs.next() {
                Some(second) if first.is_unique() => {
                    ops::add::into(&first, &second)?;
                    first
                }
                Some(second) => ops::add::forward(&first, &second)?,
                None => first,
            });
        }
        parts = level;
    }
    parts.pop().ok_or(AutogradError::NotRecorded)
}

/// Writes or adds an f32 gradient to a target, rounding it once.
pub(crate) fn give(gradient: &Tensor, target: &GradientTarget) -> Result<()> {
    let GradientTarget { tensor, accumulate } = target;
    let gradient = gradient.reshape(tensor.shape())?;
    if tensor.dtype() == DType::F32 {
        match accumulate {
            true => ops::add::into(tensor, &gradient)?,
            false => tensor.copy_from(&gradient)?,
        }
        return Ok(());
    }
    if *accumulate {
        let before = tensor.like(DType::F32, Request::new(Category::Workspace, "gradient_sums"))?;
        ops::cast::into(tensor, &before)?;
        ops::add::into(&before, &gradient)?;
        return Ok(ops::cast::into(&before, tensor)?);
    }
    Ok(ops::cast::into(&gradient, tensor)?)
}
