//! The transformer block of Llama and its relatives.

use autograd::Weight;
use autograd::ops::ExpertFunction;
use tensor::ops::Activation;
use tensor::ops::attention::Settings;
use tensor::ops::gate::Gate;

use super::block::Branch;
use super::block_tail::{BlockTail, BlockTailSizes};
use super::latents::Latents;
use super::rotary_attention::RotaryPositions;
use super::value_options::ValueOptions;
use super::{
    Block, BlockFeedForward, BlockNorm, Dropout, FeedForward, GatedDelta, GatedDeltaSizes, GatedFeedForward,
    KeyValueRole, LatentQkv, LatentSizes, Linear, Mixture, MixtureSizes, Multiplier, NormOptions, QkNorm,
    QkNormSpan, QkvLayer, RotaryAttention, ShortConvolution, ShortConvolutionSizes, StateSpace,
    StateSpaceSizes, TokenMixer,
};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

system::names! {
    /// Positions of the norms of a branch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NormPosition {
        /// Before the branch, as in Llama.
        Before = "before",
        /// After the branch, as in OLMo 2.
        After = "after",
        /// Before and after the branch, as in Gemma 2.
        Both = "both",
    }
}

impl NormPosition {
    /// Returns the norms before and after attention, then before and after the feed-forward layers, by
    /// Hugging Face's names.
    ///
    /// Parallel branches share the norm before attention.
    fn names(self, is_parallel: bool) -> [[Option<&'static str>; 2]; 2] {
        let (input, attention) = ("input_layernorm", "post_attention_layernorm");
        let (before, after) = ("pre_feedforward_layernorm", "post_feedforward_layernorm");
        match self {
            _ if is_parallel => [[Some(input), None], [None, None]],
            NormPosition::Before => [[Some(input), None], [Some(attention), None]],
            NormPosition::After => [[None, Some(attention)], [None, Some(after)]],
            NormPosition::Both => [[Some(input), Some(attention)], [Some(before), Some(after)]],
        }
    }

    /// Names of all norms of a block with these branches.
    pub(crate) fn all_names(
        self,
        is_parallel: bool,
        branches: [bool; 2],
    ) -> impl Iterator<Item = &'static str> {
        let names = self.names(is_parallel).into_iter().zip(branches);
        names.filter(|(_, has_branch)| *has_branch).flat_map(|(names, _)| names).flatten()
    }
}

/// Sizes and options of a [`LlamaBlock`].
#[derive(Clone, Copy, Debug)]
pub struct LlamaBlockSizes {
    /// Width of the residual stream.
    pub width: usize,
    /// Whether the block has a mixer of tokens, and feed-forward layers.
    pub branches: [bool; 2],
    /// Attention heads, and the computation of scores.
    pub attention: Settings,
    /// The short convolution that replaces attention, if any.
    pub convolution: Option<ShortConvolutionSizes>,
    /// Whether the block has attention.
    pub attends: bool,
    /// State spaces instead of attention or beside it, if any.
    pub state_space: Option<StateSpaceSizes>,
    /// The linear attention that replaces attention, if any.
    pub delta: Option<GatedDeltaSizes>,
    /// Whether attention's output is gated by further rows of the query projection.
    pub attention_gate: bool,
    /// Latents of queries, keys and values, if any.
    pub latents: Option<LatentSizes>,
    /// Hidden width of the feed-forward layers.
    pub feed_forward: usize,
    /// Whether these layers have a gate.
    pub is_gated: bool,
    /// The experts that replace these layers, if any.
    pub mixture: Option<MixtureSizes>,
    /// Function of the gate.
    pub gate: Gate,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward layers have biases.
    pub mlp_bias: bool,
    /// Whether query heads have attention sinks.
    pub sinks: bool,
    /// Columns that each norm of queries and keys covers; `None` without such norms.
    pub qk_norm: Option<QkNormSpan>,
    /// Whether the norms of queries and keys follow the rotation instead of preceding it.
    pub qk_norm_last: bool,
    /// Positions of the norms.
    pub norm_position: NormPosition,
    /// Options of all norms.
    pub norms: NormOptions,
    /// Whether both branches read the same norm.
    pub is_parallel: bool,
    /// Whether values are normalised by head, without a weight.
    pub value_norm: bool,
    /// Whether the projection has no values, and keys before their norm and rotation are used instead.
    pub keys_as_values: bool,
    /// Width of the layer's embeddings of tokens; 0 for none.
    pub layer_embedding: usize,
    /// Index of the first layer of the stage.
    pub first_layer: usize,
    /// Whether the block's result has a factor.
    pub has_factor: bool,
    /// Factor of both branches.
    pub residual_scale: f64,
    /// Factors of attention and of state spaces beside each other.
    pub mixer_scales: [f64; 2],
    /// Factor of the gate of the feed-forward layers before its activation.
    pub gate_scale: f64,
    /// Factor of the results of the feed-forward layers.
    pub feed_forward_scale: f64,
    /// Dropout probability of attention weights.
    pub dropout: f64,
    /// Dropout probability of both branches.
    pub branch_dropout: f64,
}

/// Llama's block: norms, a mixer of tokens, and feed-forward layers, or one of both.
pub type LlamaBlock = Block<BlockNorm, TokenMixer, BlockFeedForward>;

impl LlamaBlock {
    /// Registers the parameters of layer `index` as `model.layers.{index}.…`. Names are Hugging Face's,
    /// except two fused matrices: `self_attn.qkv_proj` has the rows of `q_proj`, `k_proj` and `v_proj` (if
    /// there are no latents), and `mlp.gate_up_proj` has the rows of `gate_proj` and `up_proj`. The second
    /// `Init` is for the layers whose outputs are added to the residual stream.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(
        parameters: &mut Parameters,
        index: usize,
        sizes: LlamaBlockSizes,
        positions: RotaryPositions,
        inits: [Init; 2],
    ) -> Result<Self> {
        parameters.begin_unit();
        let name = format!("model.layers.{index}");
        let [attention_norms, feed_forward_norms] = sizes.norm_position.names(sizes.is_parallel);
        let [has_mixer, has_feed_forward] = sizes.branches;
        let attention = has_mixer.then(|| {
            Self::branch(parameters, &name, sizes, attention_norms, "self_attn", |parameters| {
                Self::mixer(parameters, &name, sizes, positions, inits)
            })
        });
        let attention = attention.transpose()?;
        let feed_forward = has_feed_forward.then(|| {
            Self::branch(parameters, &name, sizes, feed_forward_norms, "mlp", |parameters| {
                Self::feed_forward(parameters, (index, &format!("{name}.mlp")), sizes, inits)
            })
        });
        let feed_forward = feed_forward.transpose()?;
        let tail = BlockTailSizes {
            index: index.saturating_sub(sizes.first_layer),
            width: sizes.width,
            embedding: sizes.layer_embedding,
            has_factor: sizes.has_factor,
            activation: sizes.gate.activation,
        };
        let tail = BlockTail::new(parameters, &name, tail, sizes.norms, inits)?;
        Ok(LlamaBlock { name, attention, feed_forward, is_parallel: sizes.is_parallel, tail })
    }

    /// Registers the layer in which tokens interact.
    fn mixer(
        parameters: &mut Parameters,
        name: &str,
        sizes: LlamaBlockSizes,
        positions: RotaryPositions,
        inits: [Init; 2],
    ) -> Result<TokenMixer> {
        if let Some(delta) = sizes.delta {
            let prefix = format!("{name}.linear_attn");
            let layer = GatedDelta::new(parameters, &prefix, sizes.width, delta, inits)?;
            return Ok(TokenMixer::Delta(Box::new(layer)));
        }
        if let Some(convolution) = sizes.convolution {
            let prefix = format!("{name}.conv");
            let layer = ShortConvolution::new(parameters, &prefix, sizes.width, convolution, inits)?;
            return Ok(TokenMixer::Convolution(Box::new(layer)));
        }
        let states = |parameters: &mut Parameters, states| {
            StateSpace::new(parameters, &format!("{name}.mamba"), sizes.width, states, inits)
        };
        match sizes.state_space {
            Some(own) if !sizes.attends => Ok(TokenMixer::StateSpace(Box::new(states(parameters, own)?))),
            Some(own) => {
                let attend =
                    |parameters: &mut Parameters| Self::attention(parameters, name, sizes, positions, inits);
                let attention = parameters.branch(attend)?;
                let states = parameters.branch(|parameters| states(parameters, own))?;
                let factors = sizes.mixer_scales.map(Multiplier::new);
                Ok(TokenMixer::Both(Box::new((attention, states, factors))))
            }
            None => {
                let layer = Self::attention(parameters, name, sizes, positions, inits)?;
                Ok(TokenMixer::Attention(Box::new(layer)))
            }
        }
    }

    /// Registers the feed-forward layers, or a mixture of experts.
    fn feed_forward(
        parameters: &mut Parameters,
        (index, prefix): (usize, &str),
        sizes: LlamaBlockSizes,
        inits: [Init; 2],
    ) -> Result<BlockFeedForward> {
        let LlamaBlockSizes { width, mlp_bias, gate, .. } = sizes;
        let Some(mixture) = sizes.mixture else {
            let widths = [width, sizes.feed_forward];
            if !sizes.is_gated {
                let names = ["up_proj", "down_proj"].map(|part| format!("{prefix}.{part}"));
                let options = (mlp_bias, gate.activation);
                let layers = FeedForward::new(parameters, names, widths, inits, options)?;
                return Ok(BlockFeedForward::Plain(Box::new(layers)));
            }
            let layers = GatedFeedForward::new(parameters, prefix, widths, inits, gate, mlp_bias)?;
            let layers = layers.with_gate_scale(sizes.gate_scale)?;
            return Ok(BlockFeedForward::Dense(Box::new(layers)));
        };
        let function = match sizes.is_gated {
            true => ExpertFunction::Gated(gate),
            false => ExpertFunction::Plain(gate.activation),
        };
        let layers = Mixture::new(parameters, (index, prefix, width), (mixture, function), inits)?;
        Ok(BlockFeedForward::Mixture(Box::new(layers)))
    }

    /// Registers a branch: the norm before it, its layers, and the norm after it.
    fn branch<L>(
        parameters: &mut Parameters,
        name: &str,
        sizes: LlamaBlockSizes,
        [before, after]: [Option<&str>; 2],
        site: &str,
        layers: impl FnOnce(&mut Parameters) -> Result<L>,
    ) -> Result<Branch<BlockNorm, L>> {
        let norm = |parameters: &mut Parameters, part: Option<&str>| {
            let create = |part| sizes.norms.norm(parameters, &format!("{name}.{part}"), sizes.width);
            part.map(create).transpose()
        };
        let before = norm(parameters, before)?;
        let layers = parameters.branch(layers)?;
        let after = norm(parameters, after)?;
        let own = if site == "mlp" { sizes.feed_forward_scale } else { 1.0 };
        let scale = Multiplier::new(sizes.residual_scale * own);
        let dropout = Dropout::new(parameters, &format!("{name}.{site}.dropout"), sizes.branch_dropout);
        Ok(Branch { before, layers, after, scale, dropout })
    }

    fn attention(
        parameters: &mut Parameters,
        name: &str,
        sizes: LlamaBlockSizes,
        positions: RotaryPositions,
        [init, projection]: [Init; 2],
    ) -> Result<RotaryAttention> {
        let LlamaBlockSizes { width, attention, .. } = sizes;
        let prefix = format!("{name}.self_attn");
        let heads = attention.heads;
        let latents = Self::latents(parameters, &prefix, sizes, init)?;
        let is_reader = matches!(positions.shared, Some((_, KeyValueRole::Reader { .. })));
        let has_query_norm = is_reader && sizes.qk_norm.is_some();
        let sizes = LlamaBlockSizes { qk_norm: sizes.qk_norm.filter(|_| !is_reader), ..sizes };
        let mut query_norm = match has_query_norm && parameters.shards().is_divided() {
            true => Some(Self::query_norm(parameters, &prefix, sizes)?),
            false => None,
        };
        let shared = Self::shared_norm(parameters, &prefix, sizes)?;
        let qkv = match (latents, sizes.latents) {
            (Some(latents), Some(widths)) => {
                let layer = LatentQkv::new(parameters, &prefix, (width, widths), attention, init)?;
                QkvLayer::Latents(Box::new((latents, layer)))
            }
            _ if is_reader => {
                let name = format!("{prefix}.q_proj");
                let columns = [width, heads.query_columns()];
                let options = (sizes.qkv_bias, Activation::None);
                QkvLayer::Linear(Box::new(Linear::optional_bias(parameters, &name, columns, init, options)?))
            }
            _ => {
                let fused = format!("{prefix}.qkv_proj");
                let [queries, keys, values] = heads.groups_of_columns();
                let gates = if sizes.attention_gate { heads.output_columns() } else { 0 };
                let values = if sizes.keys_as_values { 0 } else { values };
                let columns = [width, queries + gates + keys + values];
                let options = (sizes.qkv_bias, Activation::None);
                QkvLayer::Linear(Box::new(Linear::optional_bias(parameters, &fused, columns, init, options)?))
            }
        };
        if has_query_norm && query_norm.is_none() {
            query_norm = Some(Self::query_norm(parameters, &prefix, sizes)?);
        }
        let norm = match (sizes.qk_norm, shared) {
            (Some(span), None) => Some(Self::norm(parameters, &prefix, sizes, span)?),
            (_, shared) => shared,
        };
        let output = format!("{prefix}.o_proj");
        let columns = [heads.output_columns(), width];
        let options = (sizes.output_bias, Activation::None);
        let output = Linear::optional_bias(parameters, &output, columns, projection, options)?;
        let weights = Dropout::of_shards(parameters, &format!("{prefix}.weights.dropout"), sizes.dropout);
        let sinks = match sizes.sinks {
            true => {
                let name = format!("{prefix}.sinks");
                parameters.create_shards(&name, [heads.query], Init::Constant(0.0))?
            }
            false => Vec::new(),
        };
        let values = ValueOptions {
            are_keys: sizes.keys_as_values,
            norm: match sizes.value_norm {
                true => Some((parameters.ones(heads.value_width)?, sizes.norms.epsilon)),
                false => None,
            },
            query_norm,
        };
        let layer = RotaryAttention::new(qkv, norm, output, attention, positions);
        Ok(layer.dropping(weights).with_sinks(sinks).with_values(values).gated(sizes.attention_gate))
    }

    /// Registers the norm of queries of a layer without keys of its own.
    fn query_norm(
        parameters: &mut Parameters,
        prefix: &str,
        sizes: LlamaBlockSizes,
    ) -> Result<(Weight, f32)> {
        let NormOptions { has_weight, is_less_one, epsilon, .. } = sizes.norms;
        let width = sizes.attention.heads.width;
        let name = format!("{prefix}.q_norm.weight");
        let weight = match (has_weight, is_less_one) {
            (false, _) => parameters.ones(width)?,
            (true, false) => parameters.create_copied(&name, [width], Init::Constant(1.0))?,
            (true, true) => parameters.create_copied(&name, [width], Init::Constant(0.0))?.plus(1.0),
        };
        Ok((weight, epsilon))
    }

    /// Registers the layers that compute latents, if any.
    fn latents(
        parameters: &mut Parameters,
        prefix: &str,
        sizes: LlamaBlockSizes,
        init: Init,
    ) -> Result<Option<Latents>> {
        let Some(latents) = sizes.latents else { return Ok(None) };
        Ok(Some(Latents::new(parameters, prefix, (sizes.width, latents), sizes.norms, init)?))
    }

    /// If layers are sharded, registers the norms of single heads, which all shards share.
    fn shared_norm(
        parameters: &mut Parameters,
        prefix: &str,
        sizes: LlamaBlockSizes,
    ) -> Result<Option<QkNorm>> {
        let is_sharded = parameters.shards().is_divided();
        let of_heads = sizes.qk_norm.filter(|span| is_sharded && *span == QkNormSpan::Head);
        of_heads.map(|span| Self::norm(parameters, prefix, sizes, span)).transpose()
    }

    /// Registers the norms of queries and keys.
    fn norm(
        parameters: &mut Parameters,
        prefix: &str,
        sizes: LlamaBlockSizes,
        span: QkNormSpan,
    ) -> Result<QkNorm> {
        let norm = QkNorm::new(parameters, prefix, sizes.attention.heads, span, sizes.norms)?;
        Ok(norm.after_rotation(sizes.qk_norm_last))
    }
}
