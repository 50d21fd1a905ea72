//! A pre-norm transformer block on a residual stream.

use autograd::{Tape, Var, ops};

use super::{CausalSelfAttention, FeedForward, Layer, LayerNorm, Stream, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// The residual stream between blocks: the sum so far, and the last branch, which is added where it is
/// normalised next, in one operator with that.
#[derive(Debug)]
pub struct Residual {
    sum: Var,
    branch: Option<Var>,
}

impl Residual {
    /// The stream that starts with `sum`.
    pub fn new(sum: Var) -> Self {
        Residual { sum, branch: None }
    }

    /// Adds the pending branch and normalises: the stream, and the normalised values.
    pub fn normalise(self, tape: &Tape, norm: &LayerNorm) -> Result<(Var, Var)> {
        norm.forward_residual(tape, self.sum, self.branch)
    }
}

impl Stream for Residual {
    /// The stream as one tensor, to cross a cut. The next normalisation of it gives the same bits as without a cut, also
    /// in backward: the fused operator rounds its sum in the same way, and adds gradients in the same kernel.
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
        let (sum, branch) = (variables.next()?, variables.next());
        variables.next().is_none().then_some(Residual { sum, branch })
    }
}

/// `x + attention(norm(x))`, then `x + feed_forward(norm(x))`.
#[derive(Debug)]
pub struct Block {
    name: String,
    norm_1: LayerNorm,
    attention: CausalSelfAttention,
    norm_2: LayerNorm,
    feed_forward: FeedForward,
}

impl Block {
    /// Registers the parameters of layer `index`, as `h.{index}.…`. `projection` is for what feeds the residual stream.
    pub fn new(
        parameters: &mut Parameters,
        index: usize,
        width: usize,
        heads: usize,
        init: Init,
        projection: Init,
    ) -> Result<Self> {
        let name = format!("h.{index}");
        let norm_1 = LayerNorm::new(parameters, &format!("{name}.ln_1"), width)?;
        let attention = CausalSelfAttention::new(parameters, &name, width, heads, init, projection)?;
        let norm_2 = LayerNorm::new(parameters, &format!("{name}.ln_2"), width)?;
        let feed_forward = FeedForward::new(parameters, &name, width, init, projection)?;
        Ok(Block { name, norm_1, attention, norm_2, feed_forward })
    }
}

impl Layer for Block {
    type Stream = Residual;

    fn forward(&self, tape: &Tape, stream: Residual) -> Result<Residual> {
        within(tape, &self.name, || {
            let (sum, normalised) = stream.normalise(tape, &self.norm_1)?;
            let branch = self.attention.forward(tape, normalised)?;
            let stream = Residual { sum, branch: Some(branch) };
            let (sum, normalised) = stream.normalise(tape, &self.norm_2)?;
            let branch = self.feed_forward.forward(tape, normalised)?;
            Ok(Residual { sum, branch: Some(branch) })
        })
    }
}
