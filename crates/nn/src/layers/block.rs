//! GPT-2's pre-norm transformer block.

use autograd::Tape;
use tensor::ops::Activation;
use tensor::ops::attention::{Heads, Qkv};

use super::{CausalSelfAttention, FeedForward, Layer, LayerNorm, Linear, Residual, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

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
    /// Registers the parameters of layer `index` as `h.{index}.…`. `projection` initialises the two layers
    /// whose outputs are added to the residual stream. Errors: out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        index: usize,
        width: usize,
        heads: Heads,
        init: Init,
        projection: Init,
    ) -> Result<Self> {
        let name = format!("h.{index}");
        let norm_1 = LayerNorm::new(parameters, &format!("{name}.ln_1"), width)?;
        let mut linear = |part: &str, inputs, outputs, init| {
            Linear::new(parameters, &format!("{name}.{part}"), inputs, outputs, init, Activation::None)
        };
        let qkv = Qkv::Packed(linear("attn_qkv", width, heads.packed_columns(), init)?);
        let output = linear("attn_proj", heads.query_columns(), width, projection)?;
        let attention = CausalSelfAttention::new(qkv, output, heads);
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
            let stream = Residual::pending(sum, self.attention.forward(tape, normalised)?);
            let (sum, normalised) = stream.normalise(tape, &self.norm_2)?;
            Ok(Residual::pending(sum, self.feed_forward.forward(tape, normalised)?))
        })
    }
}
