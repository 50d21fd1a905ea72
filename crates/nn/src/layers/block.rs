//! The pre-norm transformer block.

use autograd::{Tape, Var};

use super::{Dropout, Layer, Norm, Residual, within};
use crate::error::Result;

/// `x + attention(norm(x))`, then `x + feed_forward(norm(x))`, with norms `N`, attention `A` and feed-forward
/// layers `F`.
#[derive(Debug)]
pub struct Block<N, A, F> {
    /// The module in which its operators run.
    pub(super) name: String,
    pub(super) norm_1: N,
    pub(super) attention: A,
    pub(super) norm_2: N,
    pub(super) feed_forward: F,
    /// Dropout of the attention branch and of the feed-forward branch.
    pub(super) dropout: [Dropout; 2],
}

impl<N, A, F> Layer for Block<N, A, F>
where
    N: Norm,
    A: Layer<Stream = Var>,
    F: Layer<Stream = Var>,
{
    type Stream = Residual;

    fn forward(&self, tape: &Tape, stream: Residual) -> Result<Residual> {
        let [after_attention, after_feed_forward] = &self.dropout;
        within(tape, &self.name, || {
            let (sum, normalised) = stream.normalise(tape, &self.norm_1)?;
            let branch = self.attention.forward(tape, normalised)?;
            let stream = Residual::pending(sum, after_attention.forward(tape, branch)?);
            let (sum, normalised) = stream.normalise(tape, &self.norm_2)?;
            let branch = self.feed_forward.forward(tape, normalised)?;
            Ok(Residual::pending(sum, after_feed_forward.forward(tape, branch)?))
        })
    }
}
