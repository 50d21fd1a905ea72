//! The transformer block of Llama and its relatives.

use autograd::Weight;
use collective::Axis;
use tensor::ops::Activation;
use tensor::ops::attention::Settings;
use tensor::ops::gate::Gate;

use super::block::Branch;
use super::latents::Latents;
use super::mixture::MixtureState;
use super::rotary_attention::RotaryPositions;
use super::{
    Block, BlockFeedForward, Divided, Dropout, GatedFeedForward, LatentQkv, LatentSizes, Linear, LinearCut,
    LlamaAttention, Mixture, MixtureSizes, Multiplier, QkNorm, QkNormSpan, QkvLayer, RmsNorm,
    RotaryAttention,
};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;
use crate::sharding::Sharding;

/// Positions of the norms of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPosition {
    /// Before the branch, as in Llama.
    Before,
    /// After the branch, as in OLMo 2.
    After,
    /// Before and after it, as in Gemma 2.
    Both,
}

impl NormPosition {
    /// Returns its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            NormPosition::Before => "before",
            NormPosition::After => "after",
            NormPosition::Both => "both",
        }
    }

    /// Names of the norms before and after attention, then of those before and after the feed-forward
    /// layers, as Hugging Face has them.
    fn names(self) -> [[Option<&'static str>; 2]; 2] {
        let (input, attention) = ("input_layernorm", "post_attention_layernorm");
        let (before, after) = ("pre_feedforward_layernorm", "post_feedforward_layernorm");
        match self {
            NormPosition::Before => [[Some(input), None], [Some(attention), None]],
            NormPosition::After => [[None, Some(attention)], [None, Some(after)]],
            NormPosition::Both => [[Some(input), Some(attention)], [Some(before), Some(after)]],
        }
    }

    /// Names of all norms of a block.
    pub(crate) fn all_names(self) -> impl Iterator<Item = &'static str> {
        self.names().into_iter().flatten().flatten()
    }
}

/// Sizes and options of a [`LlamaBlock`].
#[derive(Clone, Copy, Debug)]
pub struct LlamaBlockSizes {
    /// Values of the residual stream.
    pub width: usize,
    /// Attention heads and the computation of scores.
    pub attention: Settings,
    /// Latents of queries, keys and values, if there are some.
    pub latents: Option<LatentSizes>,
    /// Tokens in a sequence.
    pub context: usize,
    /// Hidden width of the feed-forward layers.
    pub feed_forward: usize,
    /// The experts instead of those layers, if there are any.
    pub mixture: Option<MixtureSizes>,
    /// The gate's function.
    pub gate: Gate,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward layers have biases.
    pub mlp_bias: bool,
    /// Whether query heads have sinks.
    pub sinks: bool,
    /// Span of the norms of queries and keys; `None` without them.
    pub qk_norm: Option<QkNormSpan>,
    /// Positions of the norms.
    pub norms: NormPosition,
    /// Whether the weights of norms are stored less 1.
    pub norms_less_one: bool,
    /// Epsilon added to mean squares in norms.
    pub epsilon: f32,
    /// Factor of both branches.
    pub residual_scale: f64,
    /// Probability of dropout of attention weights and of both branches.
    pub dropout: f64,
}

/// Llama's block: RMS norms, rotary positions, and gated feed-forward layers.
pub type LlamaBlock = Block<RmsNorm, LlamaAttention, Divided<BlockFeedForward>>;

impl LlamaBlock {
    /// Registers the parameters of layer `index` as `model.layers.{index}.…`, named as by Hugging Face except
    /// two fused matrices: `self_attn.qkv_proj` has the rows of `q_proj`, `k_proj` and `v_proj`, unless they
    /// have latents, and `mlp.gate_up_proj` those of `gate_proj` and `up_proj`. `projection` initialises the
    /// layers whose outputs are added to the residual stream.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        index: usize,
        sizes: LlamaBlockSizes,
        positions: RotaryPositions,
        inits: [Init; 2],
    ) -> Result<Self> {
        parameters.begin_unit();
        let (name, context) = (format!("model.layers.{index}"), sizes.context);
        let [attention_norms, feed_forward_norms] = sizes.norms.names();
        let attention = Self::branch(parameters, &name, sizes, attention_norms, "self_attn", |parameters| {
            let latents = Self::latents(parameters, &name, sizes, inits[0])?;
            let mut shared = Self::shared_norms(parameters, &name, sizes)?.into_iter();
            let output = (&*format!("{name}.self_attn.o_proj"), sizes.width, sizes.output_bias);
            let heads = Divided::new(parameters, output, context, |parameters| {
                Self::attention(parameters, &name, sizes, (&positions, shared.next()), inits)
            })?;
            Ok(LlamaAttention { latents, heads })
        })?;
        let feed_forward = Self::branch(parameters, &name, sizes, feed_forward_norms, "mlp", |parameters| {
            Self::feed_forward(parameters, (index, &format!("{name}.mlp")), sizes, inits)
        })?;
        Ok(LlamaBlock { name, attention, feed_forward })
    }

    /// Registers the feed-forward layers, or a mixture of experts.
    fn feed_forward(
        parameters: &mut Parameters,
        (index, prefix): (usize, &str),
        sizes: LlamaBlockSizes,
        inits: [Init; 2],
    ) -> Result<Divided<BlockFeedForward>> {
        let LlamaBlockSizes { width, context, mlp_bias, gate, .. } = sizes;
        let Some(mixture) = sizes.mixture else {
            let output = (&*format!("{prefix}.down_proj"), width, mlp_bias);
            return Divided::new(parameters, output, context, |parameters| {
                let widths = [width, sizes.feed_forward];
                let layers = GatedFeedForward::new(parameters, prefix, widths, inits, gate, mlp_bias)?;
                Ok(BlockFeedForward::Dense(layers))
            });
        };
        let state = MixtureState::new(parameters, (index, prefix), mixture)?;
        let output = (&*format!("{prefix}.experts"), width, false);
        let mut is_first_here = true;
        Divided::new(parameters, output, context, |parameters| {
            let state = (state.clone(), std::mem::take(&mut is_first_here));
            let layers = Mixture::new(parameters, (prefix, width), (mixture, gate), inits, state)?;
            Ok(BlockFeedForward::Mixture(Box::new(layers)))
        })
    }

    /// Registers the norm before a branch, its layers and the norm after it.
    fn branch<L>(
        parameters: &mut Parameters,
        name: &str,
        sizes: LlamaBlockSizes,
        [before, after]: [Option<&str>; 2],
        site: &str,
        layers: impl FnOnce(&mut Parameters) -> Result<L>,
    ) -> Result<Branch<RmsNorm, L>> {
        let new = if sizes.norms_less_one { RmsNorm::less_one } else { RmsNorm::new };
        let norm = |parameters: &mut Parameters, part: Option<&str>| {
            let create = |part| new(parameters, &format!("{name}.{part}"), sizes.width, sizes.epsilon);
            part.map(create).transpose()
        };
        let before = norm(parameters, before)?;
        let layers = layers(parameters)?;
        let after = norm(parameters, after)?;
        let scale = Multiplier::new(sizes.residual_scale);
        let dropout = Dropout::new(parameters, &format!("{name}.{site}.dropout"), sizes.dropout);
        Ok(Branch { before, layers, after, scale, dropout })
    }

    /// Registers the layers of latents, which all lanes share, if there are some.
    fn latents(
        parameters: &mut Parameters,
        name: &str,
        sizes: LlamaBlockSizes,
        init: Init,
    ) -> Result<Option<Latents>> {
        let Some(latents) = sizes.latents else { return Ok(None) };
        let (prefix, norm) = (format!("{name}.self_attn"), (sizes.epsilon, sizes.norms_less_one));
        Ok(Some(Latents::new(parameters, &prefix, (sizes.width, latents), norm, init)?))
    }

    /// Registers the norms of heads that all lanes share, if layers are divided and have some. Of a norm over
    /// all heads, lanes have parts.
    fn shared_norms(parameters: &mut Parameters, name: &str, sizes: LlamaBlockSizes) -> Result<Vec<QkNorm>> {
        let lanes = parameters.lanes();
        let of_heads = sizes.qk_norm.filter(|span| lanes.is_divided() && *span == QkNormSpan::Head);
        let Some(span) = of_heads else { return Ok(Vec::new()) };
        Ok(Self::norm(parameters, &format!("{name}.self_attn"), sizes, span)?.in_lanes(lanes))
    }

    /// Registers norms of queries and keys.
    fn norm(
        parameters: &mut Parameters,
        prefix: &str,
        sizes: LlamaBlockSizes,
        span: QkNormSpan,
    ) -> Result<QkNorm> {
        let offset = if sizes.norms_less_one { 1.0 } else { 0.0 };
        QkNorm::new(parameters, prefix, sizes.attention.heads, span, [sizes.epsilon, offset])
    }

    /// Registers a lane of attention, whose norm of queries and keys is `shared` if it has one of all lanes.
    fn attention(
        parameters: &mut Parameters,
        name: &str,
        sizes: LlamaBlockSizes,
        (positions, shared): (&RotaryPositions, Option<QkNorm>),
        [init, projection]: [Init; 2],
    ) -> Result<RotaryAttention> {
        let LlamaBlockSizes { width, attention, .. } = sizes;
        let (prefix, heads) = (format!("{name}.self_attn"), attention.heads);
        let qkv = match sizes.latents {
            Some(latents) => {
                let latents = (width, latents);
                QkvLayer::Latents(Box::new(LatentQkv::new(parameters, &prefix, latents, attention, init)?))
            }
            None => {
                let (fused, groups) = (format!("{prefix}.qkv_proj"), heads.groups_of_columns());
                let cut = ([width, heads.packed_columns()], LinearCut::Outputs(&groups));
                let (biases, none) = (sizes.qkv_bias, Activation::None);
                QkvLayer::Linear(Box::new(Linear::lane(parameters, &fused, cut, init, biases, none)?))
            }
        };
        let norm = match (sizes.qk_norm, shared) {
            (Some(span), None) => Some(Self::norm(parameters, &prefix, sizes, span)?),
            (_, shared) => shared,
        };
        let (output, cut) =
            (format!("{prefix}.o_proj"), ([heads.output_columns(), width], LinearCut::Inputs));
        let biases = sizes.output_bias;
        let output = Linear::lane(parameters, &output, cut, projection, biases, Activation::None)?;
        let attention = Settings { heads: heads.divided(parameters.lanes().all), ..attention };
        let weights = Dropout::new(parameters, &format!("{prefix}.weights.dropout"), sizes.dropout);
        let sinks = if sizes.sinks { Some(Self::sinks(parameters, &prefix, heads.query)?) } else { None };
        let layer = RotaryAttention::new(qkv, norm, output, attention, positions.clone());
        Ok(layer.dropping(weights).with_sinks(sinks))
    }

    /// Registers the sinks of the query heads, or those of a lane.
    fn sinks(parameters: &mut Parameters, prefix: &str, heads: usize) -> Result<Weight> {
        let sinks = Sharding::replicated([heads]).divided(Axis::Tensor, 0, parameters.lanes().all)?;
        parameters.create_sharded(&format!("{prefix}.sinks"), sinks, Init::Constant(0.0))
    }
}
