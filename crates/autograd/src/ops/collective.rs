//! Collectives among the ranks along an axis, as operators on variables.
//!
//! A gradient is the gradient of the sum of all ranks' losses, so backward of a collective is its transpose:
//! an all-reduce for an all-reduce, a reduce-scatter for an all-gather and vice versa, and the reverse shift
//! for a shift. Sums follow the fixed tree of [`collective::tensors`], with the same bits on every transport.
//! On a rank that is alone along the axis, each operator returns its operand and records nothing.

use collective::{Axis, ProcessGroup, tensors};
use device::{Category, Request};
use tensor::Tensor;

use super::only;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::tape::Tape;

/// A collective with one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// [`all_reduce`].
    AllReduce,
    /// [`all_gather`].
    AllGather,
    /// [`reduce_scatter`].
    ReduceScatter,
    /// [`exchange`] with this shift.
    Exchange(isize),
}

/// Backward of a collective.
#[derive(Debug)]
pub struct CollectiveRule {
    collective: Collective,
    group: ProcessGroup,
}

/// Returns the sum of `x` over the ranks along `axis`; f32, bf16 or f16.
pub fn all_reduce(tape: &Tape, x: Var, axis: Axis) -> Result<Var> {
    call(tape, Collective::AllReduce, x, axis)
}

/// Returns the rows of `x [rows, ..]` of all ranks along `axis`, in rank order: `[ranks · rows, ..]`.
pub fn all_gather(tape: &Tape, x: Var, axis: Axis) -> Result<Var> {
    call(tape, Collective::AllGather, x, axis)
}

/// Returns this rank's rows of the sum of `x [ranks · rows, ..]` over the ranks along `axis`: `[rows, ..]`;
/// f32, bf16 or f16.
///
/// # Errors
/// The rows do not divide among the ranks, memory is exhausted, or the collective failed.
pub fn reduce_scatter(tape: &Tape, x: Var, axis: Axis) -> Result<Var> {
    call(tape, Collective::ReduceScatter, x, axis)
}

/// Returns `x` of the rank `shift` before this one along `axis`, cyclically.
pub fn exchange(tape: &Tape, x: Var, axis: Axis, shift: isize) -> Result<Var> {
    call(tape, Collective::Exchange(shift), x, axis)
}

fn call(tape: &Tape, collective: Collective, x: Var, axis: Axis) -> Result<Var> {
    let Some(group) = tape.pass().groups.along(axis) else { return Ok(x) };
    let group = group.clone();
    tape.begin(collective.operator())?;
    let output = collective.run(x.tensor(), &group, Category::Activation)?;
    tape.record_one(&[x.block_source()], output, || CollectiveRule { collective, group })
}

impl Collective {
    const fn operator(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Exchange(_) => "exchange",
        }
    }

    /// Returns the collective that computes the gradient.
    const fn transpose(self) -> Self {
        match self {
            Collective::AllReduce => Collective::AllReduce,
            Collective::AllGather => Collective::ReduceScatter,
            Collective::ReduceScatter => Collective::AllGather,
            Collective::Exchange(shift) => Collective::Exchange(-shift),
        }
    }

    fn run(self, x: &Tensor, group: &ProcessGroup, category: Category) -> Result<Tensor> {
        let request = Request::new(category, self.operator());
        match self {
            Collective::AllReduce => tensors::all_reduce(x, group, request),
            Collective::AllGather => tensors::all_gather(x, group, request),
            Collective::ReduceScatter => tensors::reduce_scatter(x, group, request),
            Collective::Exchange(shift) => tensors::shift(x, group, shift, request),
        }
        .map_err(|source| AutogradError::Collective { operator: self.operator(), source })
    }
}

impl Rule for CollectiveRule {
    fn operator(&self) -> &'static str {
        self.collective.operator()
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let transpose = self.collective.transpose();
        Ok(vec![Some(transpose.run(&gradient, &self.group, Category::ActivationGradient)?)])
    }
}
