//! A transformer block: two branches on a residual stream.

use autograd::{Tape, Var, map};

use super::block_tail::BlockTail;
use super::{Dropout, Layer, Multiplier, Norm, Residual, Stream, within};
use crate::error::Result;

/// A block of attention `A` followed by feed-forward layers `F`, or one of them; each is a branch with norms
/// `N`.
#[derive(Debug)]
pub struct Block<N, A, F> {
    /// Module name under which its operators run.
    pub(super) name: String,
    pub(super) attention: Option<Branch<N, A>>,
    pub(super) feed_forward: Option<Branch<N, F>>,
    /// Whether the feed-forward layers read the input of attention. Such a block has both.
    pub(super) is_parallel: bool,
    /// Parts after both branches, if any.
    pub(super) tail: Option<BlockTail>,
}

/// A branch of the residual stream: x + scale · after(layers(before(x))).
#[derive(Debug)]
pub(super) struct Branch<N, L> {
    /// Norm of the branch's input; `None` for an unnormalised input.
    pub(super) before: Option<N>,
    pub(super) layers: L,
    /// Norm of the branch's result, if any.
    pub(super) after: Option<N>,
    pub(super) scale: Multiplier,
    pub(super) dropout: Dropout,
}

impl<N, L> Branch<N, L> {
    /// Creates a branch with a norm of its input only.
    pub(super) fn pre_norm(before: N, layers: L, dropout: Dropout) -> Self {
        Branch { before: Some(before), layers, after: None, scale: Multiplier::ONE, dropout }
    }
}

impl<N, L> Branch<N, L>
where
    N: Norm,
    L: Layer<Stream = Var>,
{
    fn forward(&self, tape: &Tape, stream: Residual) -> Result<Residual> {
        let (sum_bld, x_bld) = self.input(tape, stream)?;
        let branch_bld = self.layers.forward(tape, x_bld)?;
        self.output(tape, sum_bld, branch_bld)
    }

    /// Returns the summed residual stream, and the input of the layers: its norm, if there is a norm.
    fn input(&self, tape: &Tape, stream: Residual) -> Result<(Var, Var)> {
        match &self.before {
            Some(norm) => stream.normalise(tape, norm),
            None => stream.sum(tape),
        }
    }

    /// Adds the layers' output to the stream.
    fn output(&self, tape: &Tape, sum_bld: Var, branch_bld: Var) -> Result<Residual> {
        let branch_bld = map(tape, [branch_bld], |_, [mut branch_bld]| {
            if let Some(norm) = &self.after {
                branch_bld = norm.forward(tape, branch_bld)?;
            }
            self.dropout.forward(tape, self.scale.forward(tape, branch_bld)?)
        })?;
        Ok(Residual::pending(sum_bld, branch_bld))
    }
}

impl<N, A, F> Block<N, A, F>
where
    N: Norm,
    A: Layer<Stream = Var>,
    F: Layer<Stream = Var>,
{
    /// Computes the branches from the input of attention.
    fn forward_parallel(
        tape: &Tape,
        stream: Residual,
        attention: &Branch<N, A>,
        feed_forward: &Branch<N, F>,
    ) -> Result<Residual> {
        let (sum_bld, x_bld) = attention.input(tape, stream)?;
        let branch_bld = attention.layers.forward(tape, x_bld.clone())?;
        let sum_bld = attention.output(tape, sum_bld, branch_bld)?.close(tape)?;
        let branch_bld = feed_forward.layers.forward(tape, x_bld)?;
        feed_forward.output(tape, sum_bld, branch_bld)
    }
}

impl<N, A, F> Layer for Block<N, A, F>
where
    N: Norm,
    A: Layer<Stream = Var>,
    F: Layer<Stream = Var>,
{
    type Stream = Residual;

    fn forward(&self, tape: &Tape, stream: Residual) -> Result<Residual> {
        within(tape, &self.name, || {
            let (stream, inputs) = stream.split_inputs();
            let stream = match (&self.attention, &self.feed_forward) {
                (Some(attention), Some(feed_forward)) if self.is_parallel => {
                    Self::forward_parallel(tape, stream, attention, feed_forward)?
                }
                (Some(attention), Some(feed_forward)) => {
                    feed_forward.forward(tape, attention.forward(tape, stream)?)?
                }
                (Some(attention), None) => attention.forward(tape, stream)?,
                (None, Some(feed_forward)) => feed_forward.forward(tape, stream)?,
                (None, None) => stream,
            };
            let stream = stream.with_inputs(inputs);
            match &self.tail {
                Some(tail) => tail.forward(tape, stream),
                None => Ok(stream),
            }
        })
    }
}
