//! The residual stream of a transformer, and the norms that read it.

use autograd::{Tape, Var, ops};

use super::{Stream, within};
use crate::error::Result;

/// A normalisation that adds the stream's pending branch in the same operator.
///
/// An implementation gives the same bits whether the branch is added here or earlier by [`Stream::close`], in
/// both passes: it rounds the sum before it normalises, and adds the gradients of sum and normalised values
/// with one rounding.
pub trait Norm {
    /// Adds `branch`, if any, to `residual` and normalises the sum: (sum, normalised), both of the residual's
    /// shape.
    fn forward_residual(&self, tape: &Tape, residual: Var, branch: Option<Var>) -> Result<(Var, Var)>;

    /// Normalises `x`, of any shape with the norm's columns.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        self.forward_residual(tape, x, None).map(|(_, normalised)| normalised)
    }
}

/// The residual stream between blocks: the sum so far, and the last branch, which the next norm adds.
#[derive(Debug)]
pub struct Residual {
    sum: Var,
    branch: Option<Var>,
}

impl Residual {
    /// Returns a stream that starts with `sum`.
    pub fn new(sum: Var) -> Self {
        Residual { sum, branch: None }
    }

    /// Returns a stream of `sum + branch`, of the same shape, whose addition is pending.
    pub fn pending(sum: Var, branch: Var) -> Self {
        Residual { sum, branch: Some(branch) }
    }

    /// Adds the pending branch: the sum, twice, for the stream and for a branch without a norm.
    pub fn sum(self, tape: &Tape) -> Result<(Var, Var)> {
        let sum = self.close(tape)?;
        Ok((sum.clone(), sum))
    }

    /// Adds the pending branch and normalises the sum: (sum, normalised).
    pub fn normalise(self, tape: &Tape, norm: &impl Norm) -> Result<(Var, Var)> {
        norm.forward_residual(tape, self.sum, self.branch)
    }
}

impl Stream for Residual {
    /// Adds the pending branch.
    fn close(self, tape: &Tape) -> Result<Var> {
        match self.branch {
            Some(branch) => within(tape, "residual", || Ok(ops::add(tape, self.sum, branch)?)),
            None => Ok(self.sum),
        }
    }

    fn open(closed: Var) -> Self {
        Residual::new(closed)
    }

    fn into_variables(self) -> Vec<Var> {
        std::iter::once(self.sum).chain(self.branch).collect()
    }

    fn from_variables(variables: Vec<Var>) -> Option<Self> {
        let mut variables = variables.into_iter();
        let sum = variables.next()?;
        let branch = variables.next();
        variables.next().is_none().then_some(Residual { sum, branch })
    }
}
