//! GPT-2's pre-norm transformer block.

use tensor::ops::Activation;
use tensor::ops::attention::{Heads, Qkv};

use super::block::Branch;
use super::{Block, CausalSelfAttention, Dropout, FeedForward, LayerNorm, Linear};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// Sizes and options of a [`GptBlock`].
#[derive(Clone, Copy, Debug)]
pub struct GptBlockSizes {
    /// Values of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Whether norms and linear layers have biases.
    pub biases: bool,
    /// Activation of the feed-forward layers.
    pub activation: Activation,
    /// Probability of dropout of attention weights and of both branches.
    pub dropout: f64,
}

/// GPT-2's block: layer norms, and feed-forward layers with one activation.
pub type GptBlock = Block<LayerNorm, CausalSelfAttention, FeedForward>;

impl GptBlock {
    /// Registers the parameters of layer `index` as `h.{index}.…`. `projection` initialises the two layers
    /// whose outputs are added to the residual stream.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        index: usize,
        sizes: GptBlockSizes,
        [init, projection]: [Init; 2],
    ) -> Result<Self> {
        let GptBlockSizes { width, heads, biases, activation, dropout } = sizes;
        parameters.begin_unit();
        let name = format!("h.{index}");
        let norm = if biases { LayerNorm::new } else { LayerNorm::without_bias };
        let linear = if biases { Linear::new } else { Linear::without_bias };
        let of = |part: &str| format!("{name}.{part}");
        let norm_1 = norm(parameters, &of("ln_1"), width)?;
        let columns = heads.packed_columns();
        let qkv = linear(parameters, &of("attn_qkv"), width, columns, init, Activation::None)?;
        let columns = heads.query_columns();
        let output = linear(parameters, &of("attn_proj"), columns, width, projection, Activation::None)?;
        let weights = Dropout::new(parameters, &of("attention.dropout"), dropout);
        let attention = CausalSelfAttention::new(Qkv::Packed(qkv), output, heads).dropping(weights);
        let norm_2 = norm(parameters, &of("ln_2"), width)?;
        let feed_forward =
            FeedForward::new(parameters, &name, width, [init, projection], biases, activation)?;
        let [after_attention, after_feed_forward] =
            ["attn_proj.dropout", "mlp.dropout"].map(|site| Dropout::new(parameters, &of(site), dropout));
        Ok(Block {
            name,
            attention: Branch::pre_norm(norm_1, attention, after_attention),
            feed_forward: Branch::pre_norm(norm_2, feed_forward, after_feed_forward),
        })
    }
}
