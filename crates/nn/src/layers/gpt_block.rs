//! GPT-2's pre-norm transformer block.

use tensor::ops::Activation;
use tensor::ops::attention::{Heads, Qkv};

use super::block::Branch;
use super::{Block, CausalSelfAttention, Divided, Dropout, FeedForward, LayerNorm, Linear, LinearCut};
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
    /// Tokens in a sequence.
    pub context: usize,
    /// Whether norms and linear layers have biases.
    pub biases: bool,
    /// Activation of the feed-forward layers.
    pub activation: Activation,
    /// Probability of dropout of attention weights and of both branches.
    pub dropout: f64,
}

/// GPT-2's block: layer norms, and feed-forward layers with one activation.
pub type GptBlock = Block<LayerNorm, Divided<CausalSelfAttention>, Divided<FeedForward>>;

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
        let GptBlockSizes { width, context, biases, dropout, .. } = sizes;
        parameters.begin_unit();
        let name = format!("h.{index}");
        let norm = if biases { LayerNorm::new } else { LayerNorm::without_bias };
        let of = |part: &str| format!("{name}.{part}");
        let norm_1 = norm(parameters, &of("ln_1"), width)?;
        let attention = Divided::new(parameters, (&of("attn_proj"), width, biases), context, |parameters| {
            Self::attention(parameters, &name, sizes, [init, projection])
        })?;
        let norm_2 = norm(parameters, &of("ln_2"), width)?;
        let feed_forward =
            Divided::new(parameters, (&of("mlp_proj"), width, biases), context, |parameters| {
                FeedForward::new(parameters, &name, width, [init, projection], biases, sizes.activation)
            })?;
        let [after_attention, after_feed_forward] =
            ["attn_proj.dropout", "mlp.dropout"].map(|site| Dropout::new(parameters, &of(site), dropout));
        Ok(Block {
            name,
            attention: Branch::pre_norm(norm_1, attention, after_attention),
            feed_forward: Branch::pre_norm(norm_2, feed_forward, after_feed_forward),
        })
    }

    /// Registers a lane of attention.
    fn attention(
        parameters: &mut Parameters,
        name: &str,
        sizes: GptBlockSizes,
        [init, projection]: [Init; 2],
    ) -> Result<CausalSelfAttention> {
        let GptBlockSizes { width, heads, biases, .. } = sizes;
        let of = |part: &str| format!("{name}.{part}");
        let groups = heads.groups_of_columns();
        let cut = ([width, heads.packed_columns()], LinearCut::Outputs(&groups));
        let qkv = Linear::lane(parameters, &of("attn_qkv"), cut, init, biases, Activation::None)?;
        let cut = ([heads.query_columns(), width], LinearCut::Inputs);
        let output = Linear::lane(parameters, &of("attn_proj"), cut, projection, biases, Activation::None)?;
        let weights = Dropout::new(parameters, &of("attention.dropout"), sizes.dropout);
        let heads = heads.divided(parameters.lanes().all);
        Ok(CausalSelfAttention::new(Qkv::Packed(qkv), output, heads).dropping(weights))
    }
}
