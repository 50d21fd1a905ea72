//! GPT-2's pre-norm transformer block.

use tensor::ops::Activation;
use tensor::ops::attention::{Qkv, Settings};

use super::block::Branch;
use super::{Block, CausalSelfAttention, Dropout, FeedForward, LayerNorm, Linear};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// Hidden width of the feed-forward layers as a multiple of the width.
const EXPANSION: usize = 4;

/// Sizes and options of a [`GptBlock`].
#[derive(Clone, Copy, Debug)]
pub struct GptBlockSizes {
    /// Width of the residual stream.
    pub width: usize,
    /// Heads and scale of attention.
    pub attention: Settings,
    /// Whether norms and linear layers have biases.
    pub biases: bool,
    /// Activation of the feed-forward layers.
    pub activation: Activation,
    /// Dropout probability of attention weights and of both branches.
    pub dropout: f64,
}

/// GPT-2's block: layer norms, attention, and feed-forward layers with one activation.
pub type GptBlock = Block<LayerNorm, CausalSelfAttention, FeedForward>;

impl GptBlock {
    /// Registers the parameters of layer `index` as `h.{index}.…`. The second `Init` is for the two layers
    /// whose outputs are added to the residual stream.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(
        parameters: &mut Parameters,
        index: usize,
        sizes: GptBlockSizes,
        [init, projection]: [Init; 2],
    ) -> Result<Self> {
        let GptBlockSizes { width, biases, dropout, activation, .. } = sizes;
        parameters.begin_unit();
        let name = format!("h.{index}");
        let norm = if biases { LayerNorm::new } else { LayerNorm::without_bias };
        let full_name = |part: &str| format!("{name}.{part}");
        let norm_1 = norm(parameters, &full_name("ln_1"), width)?;
        let attention =
            parameters.branch(|parameters| Self::attention(parameters, &name, sizes, [init, projection]))?;
        let norm_2 = norm(parameters, &full_name("ln_2"), width)?;
        let feed_forward = parameters.branch(|parameters| {
            let names = ["mlp_fc", "mlp_proj"].map(full_name);
            let widths = [width, EXPANSION * width];
            FeedForward::new(parameters, names, widths, [init, projection], (biases, activation))
        })?;
        let [after_attention, after_feed_forward] = ["attn_proj.dropout", "mlp.dropout"]
            .map(|site| Dropout::new(parameters, &full_name(site), dropout));
        Ok(Block {
            name,
            attention: Some(Branch::pre_norm(norm_1, attention, after_attention)),
            feed_forward: Some(Branch::pre_norm(norm_2, feed_forward, after_feed_forward)),
            is_parallel: false,
            tail: None,
        })
    }

    fn attention(
        parameters: &mut Parameters,
        name: &str,
        sizes: GptBlockSizes,
        [init, projection]: [Init; 2],
    ) -> Result<CausalSelfAttention> {
        let GptBlockSizes { width, attention, biases, .. } = sizes;
        let heads = attention.heads;
        let mut linear = |part: &str, sizes, init| {
            let name = format!("{name}.{part}");
            Linear::optional_bias(parameters, &name, sizes, init, (biases, Activation::None))
        };
        let qkv = linear("attn_qkv", [width, heads.packed_columns()], init)?;
        let output = linear("attn_proj", [heads.query_columns(), width], projection)?;
        let weights = Dropout::of_shards(parameters, &format!("{name}.attention.dropout"), sizes.dropout);
        Ok(CausalSelfAttention::new(Qkv::Packed(qkv), output, attention).dropping(weights))
    }
}
