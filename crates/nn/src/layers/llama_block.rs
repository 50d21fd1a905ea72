//! Llama's pre-norm transformer block.

use tensor::ops::Activation;
use tensor::ops::attention::Heads;

use super::{
    Block, Branch, Dropout, GatedFeedForward, Linear, LinearCut, QkNorm, RmsNorm, RotaryAttention,
    RotaryTable,
};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// Sizes of a [`LlamaBlock`].
#[derive(Clone, Copy, Debug)]
pub struct LlamaBlockSizes {
    /// Values of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Tokens in a sequence.
    pub context: usize,
    /// Hidden width of the feed-forward layers.
    pub feed_forward: usize,
    /// The gate's activation.
    pub activation: Activation,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether queries and keys are normalised.
    pub qk_norm: bool,
    /// Epsilon added to mean squares in norms.
    pub epsilon: f32,
    /// Probability of dropout of attention weights and of both branches.
    pub dropout: f64,
}

/// Llama's block: RMS norms, rotary positions, and gated feed-forward layers.
pub type LlamaBlock = Block<RmsNorm, Branch<RotaryAttention>, Branch<GatedFeedForward>>;

impl LlamaBlock {
    /// Registers the parameters of layer `index` as `model.layers.{index}.…`, named as by Hugging Face except
    /// two fused matrices: `self_attn.qkv_proj` has the rows of `q_proj`, `k_proj` and `v_proj`, and
    /// `mlp.gate_up_proj` those of `gate_proj` and `up_proj`. `projection` initialises the layers whose
    /// outputs are added to the residual stream.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        index: usize,
        sizes: LlamaBlockSizes,
        table: &RotaryTable,
        [init, projection]: [Init; 2],
    ) -> Result<Self> {
        let LlamaBlockSizes { width, context, feed_forward, activation, epsilon, .. } = sizes;
        parameters.begin_unit();
        let name = format!("model.layers.{index}");
        let norm_1 = RmsNorm::new(parameters, &format!("{name}.input_layernorm"), width, epsilon)?;
        let output = (&*format!("{name}.self_attn.o_proj"), width, false);
        let mut shared = Self::shared_norms(parameters, &name, sizes)?.into_iter();
        let attention = Branch::new(parameters, output, context, |parameters| {
            Self::attention(parameters, &name, sizes, (table, shared.next()), [init, projection])
        })?;
        let norm = format!("{name}.post_attention_layernorm");
        let norm_2 = RmsNorm::new(parameters, &norm, width, epsilon)?;
        let (prefix, widths) = (format!("{name}.mlp"), [width, feed_forward]);
        let output = (&*format!("{prefix}.down_proj"), width, false);
        let feed_forward = Branch::new(parameters, output, context, |parameters| {
            GatedFeedForward::new(parameters, &prefix, widths, [init, projection], activation)
        })?;
        let dropout = ["self_attn.dropout", "mlp.dropout"]
            .map(|site| Dropout::new(parameters, &format!("{name}.{site}"), sizes.dropout));
        Ok(LlamaBlock { name, norm_1, attention, norm_2, feed_forward, dropout })
    }

    /// Registers the norms of queries and keys that all lanes share, if layers are divided and have some.
    fn shared_norms(parameters: &mut Parameters, name: &str, sizes: LlamaBlockSizes) -> Result<Vec<QkNorm>> {
        let lanes = parameters.lanes();
        if !(sizes.qk_norm && lanes.is_divided()) {
            return Ok(Vec::new());
        }
        let prefix = format!("{name}.self_attn");
        Ok(QkNorm::new(parameters, &prefix, sizes.heads.width, sizes.epsilon)?.in_lanes(lanes))
    }

    /// Registers a lane of attention, whose norm of queries and keys is `shared` if it has one of all lanes.
    fn attention(
        parameters: &mut Parameters,
        name: &str,
        sizes: LlamaBlockSizes,
        (table, shared): (&RotaryTable, Option<QkNorm>),
        [init, projection]: [Init; 2],
    ) -> Result<RotaryAttention> {
        let LlamaBlockSizes { width, heads, epsilon, qkv_bias, qk_norm, .. } = sizes;
        let prefix = format!("{name}.self_attn");
        let (fused, groups) = (format!("{prefix}.qkv_proj"), heads.groups_of_columns());
        let cut = ([width, heads.packed_columns()], LinearCut::Outputs(&groups));
        let qkv = Linear::lane(parameters, &fused, cut, init, qkv_bias, Activation::None)?;
        let norm = match (qk_norm, shared) {
            (true, None) => Some(QkNorm::new(parameters, &prefix, heads.width, epsilon)?),
            (_, shared) => shared,
        };
        let (output, cut) = (format!("{prefix}.o_proj"), ([heads.query_columns(), width], LinearCut::Inputs));
        let output = Linear::lane(parameters, &output, cut, projection, false, Activation::None)?;
        let heads = heads.divided(parameters.lanes().all);
        let weights = Dropout::new(parameters, &format!("{prefix}.weights.dropout"), sizes.dropout);
        Ok(RotaryAttention::new(qkv, norm, output, heads, table.clone()).dropping(weights))
    }
}
