//! The residual stream of a transformer, and norms that read it.

use autograd::{Tape, Var, ops};

use super::{Stream, within};
use crate::error::Result;

/// A norm that can also add the stream's pending branch, in one operator.
///
/// The bits must not depend on whether the branch is added here or earlier by [`Stream::close`]. An
/// implementation therefore rounds the sum before normalising it, and adds the gradients of sum and
/// normalised values with one rounding.
pub trait Norm {
    /// Adds `branch`, if any, to `residual` and normalises the sum. Returns (sum, normalised), both of the
    /// residual's shape.
    fn forward_residual(&self, tape: &Tape, residual: Var, branch: Option<Var>) -> Result<(Var, Var)>;

    /// Normalises `x`, which has the norm's number of columns.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        self.forward_residual(tape, x, None).map(|(_, normalised)| normalised)
    }
}

/// The residual stream between blocks: a sum, and the last branch, which the next norm will add.
#[derive(Debug)]
pub struct Residual {
    sum: Var,
    branch: Option<Var>,
    /// Embeddings of the tokens for each layer of the stage; empty without such embeddings.
    inputs: Vec<Var>,
}

impl Residual {
    /// Starts a stream with `sum_bld`.
    pub fn new(sum_bld: Var) -> Self {
        Residual { sum: sum_bld, branch: None, inputs: Vec::new() }
    }

    /// Creates the stream `sum_bld + branch`, whose addition is pending.
    pub fn pending(sum_bld: Var, branch_bld: Var) -> Self {
        Residual { sum: sum_bld, branch: Some(branch_bld), inputs: Vec::new() }
    }

    /// Adds the pending branch. Returns the sum twice: for the stream, and as the input of a branch without a
    /// norm.
    pub fn sum(self, tape: &Tape) -> Result<(Var, Var)> {
        let sum_bld = self.close(tape)?;
        Ok((sum_bld.clone(), sum_bld))
    }

    /// Adds the pending branch and normalises the sum. Returns (sum, normalised).
    pub fn normalise(self, tape: &Tape, norm: &impl Norm) -> Result<(Var, Var)> {
        norm.forward_residual(tape, self.sum, self.branch)
    }
}

impl Stream for Residual {
    /// Adds the pending branch.
    fn close(self, tape: &Tape) -> Result<Var> {
        match self.branch {
            Some(branch_bld) => within(tape, "residual", || Ok(ops::add(tape, self.sum, branch_bld)?)),
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
        variables.next().is_none().then_some(Residual { sum, branch, inputs: Vec::new() })
    }

    fn split_inputs(mut self) -> (Self, Vec<Var>) {
        let inputs = std::mem::take(&mut self.inputs);
        (self, inputs)
    }

    fn with_inputs(self, inputs: Vec<Var>) -> Self {
        Residual { inputs, ..self }
    }
}
