//! Lanes of a layer: the parts of its divided dimension, some of which are here and the others along
//! [`Axis::Tensor`]. A sum over lanes is added in f32 in a fixed tree, and rounded once.

use collective::{Axis, CollectiveError, SharedPlane, tensors};
use device::{Category, DType, Request};
use tensor::ops::GradientTarget;
use tensor::{Tensor, ops};

use crate::error::{AutogradError, Result};
use crate::tape::Tape;
use crate::weight::Weight;

/// The planes of a call whose operands are divided in lanes.
#[derive(Clone, Debug)]
pub(super) struct LanePlane {
    /// `None` if all lanes are here.
    plane: Option<SharedPlane>,
    /// Whether rows between layers are divided too. They are not in passes that generate text, which have few
    /// rows.
    divides_rows: bool,
}

impl LanePlane {
    pub(super) fn of(tape: &Tape) -> Self {
        let plane = tape.pass().planes.along(Axis::Tensor).cloned();
        LanePlane { plane, divides_rows: tape.pass().cache.is_none() }
    }

    /// Returns the number of the first of `local` lanes that are here.
    pub(super) fn first_lane(&self, local: usize) -> usize {
        self.plane.as_ref().map_or(0, |plane| tensors::first_part(plane, local))
    }

    /// Number of runs of rows of `x` that an operator with `weight` computes one by one: the lanes that are
    /// here, where rows are divided.
    pub(super) fn runs(&self, x: &Tensor, weight: &Weight) -> usize {
        let lanes = weight.row_lanes().max(1);
        if self.divides_rows && x.shape().rows().is_multiple_of(lanes) { lanes } else { 1 }
    }

    /// Returns all rows, `[rows, columns]`, of the rows that are here.
    pub(super) fn gather_rows(&self, x: &Tensor, request: Request) -> Result<Tensor> {
        match &self.plane {
            Some(plane) if self.divides_rows => {
                let rows = x.reshape([x.shape().rows(), x.shape().columns()])?;
                gathered(&rows, plane, request)
            }
            _ => Ok(x.clone()),
        }
    }

    /// Returns `x [n, ..]` of all in their order, `[all · n, ..]`.
    pub(super) fn gather(&self, x: Tensor, request: Request) -> Result<Tensor> {
        match &self.plane {
            Some(plane) => gathered(&x, plane, request),
            None => Ok(x),
        }
    }

    /// Returns the sum of `parts`, one for each lane here, and of the other lanes: the rows that are here.
    pub(super) fn sum_rows(&self, parts: Vec<Tensor>, request: Request) -> Result<Tensor> {
        self.sum_over_ranks(tree_sum(parts)?, request)
    }

    /// [`LanePlane::sum_rows`] of `parts` in f32, plus `bias`, rounded to `dtype`.
    pub(super) fn rounded_sum_rows(
        &self,
        parts: Vec<Tensor>,
        bias: Option<&Tensor>,
        dtype: DType,
        request: Request,
    ) -> Result<Tensor> {
        let Some(plane) = &self.plane else {
            return Ok(ops::rounded_sum::forward(&parts, bias, dtype, request)?);
        };
        let sum = ops::rounded_sum::forward(&parts, None, DType::F32, request)?;
        drop(parts);
        if !self.divides_rows {
            let sum = tensors::all_reduce(&sum, &mut plane.clone(), request).map_err(of(request))?;
            return Ok(ops::rounded_sum::forward(&[sum], bias, dtype, request)?);
        }
        let rows = sum.reshape([sum.shape().rows(), sum.shape().columns()])?;
        tensors::rounded_reduce_scatter(&rows, &mut plane.clone(), bias, dtype, request).map_err(of(request))
    }

    /// Adds the sums of the ranks' lanes, and returns the rows that are here.
    fn sum_over_ranks(&self, sum: Tensor, request: Request) -> Result<Tensor> {
        let Some(plane) = &self.plane else { return Ok(sum) };
        if !self.divides_rows {
            return tensors::all_reduce(&sum, &mut plane.clone(), request).map_err(of(request));
        }
        let rows = sum.reshape([sum.shape().rows(), sum.shape().columns()])?;
        tensors::reduce_scatter(&rows, &mut plane.clone(), request).map_err(of(request))
    }

    /// Returns the sum of `parts`, one for each lane here, and of the other lanes.
    pub(super) fn sum(&self, parts: Vec<Tensor>, request: Request) -> Result<Tensor> {
        let sum = tree_sum(parts)?;
        let Some(plane) = &self.plane else { return Ok(sum) };
        tensors::all_reduce(&sum, &mut plane.clone(), request).map_err(of(request))
    }

    /// Shape of the rows that are here of an array of all rows.
    pub(super) fn rows_here(&self, all: &Tensor) -> tensor::Shape {
        match &self.plane {
            Some(plane) if self.divides_rows => {
                let (rows, columns) = (all.shape().rows(), all.shape().columns());
                [rows / collective::DataPlane::world_size(plane), columns].into()
            }
            _ => all.shape(),
        }
    }
}

fn gathered(x: &Tensor, plane: &SharedPlane, request: Request) -> Result<Tensor> {
    tensors::all_gather(x, &mut plane.clone(), request).map_err(of(request))
}

fn of(request: Request) -> impl Fn(CollectiveError) -> AutogradError {
    move |source| AutogradError::Collective { operator: request.operator, source }
}

/// The sum of tensors of one shape and type, in pairs from the first on, level by level. It is made in the
/// memory of the first if no other tensor views that.
///
/// # Errors
/// No tensor; out of memory.
pub(super) fn tree_sum(mut parts: Vec<Tensor>) -> Result<Tensor> {
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

/// Gives a gradient in f32 to a target, rounded once.
///
/// # Errors
/// Out of memory.
pub(super) fn give(gradient: &Tensor, target: &GradientTarget) -> Result<()> {
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
        let request = Request::new(Category::Workspace, "lane_sum");
        let before = Tensor::empty(tensor.device(), tensor.shape(), DType::F32, request)?;
        ops::cast::into(tensor, &before)?;
        ops::add::into(&before, &gradient)?;
        return Ok(ops::cast::into(&before, tensor)?);
    }
    Ok(ops::cast::into(&gradient, tensor)?)
}
