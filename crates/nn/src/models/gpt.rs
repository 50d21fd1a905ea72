//! GPT-2: token and position embeddings, pre-norm blocks, a final norm, and an output head tied to the token
//! embedding.

use keys::{Interval, RawValues, Row, choice, section};
use tensor::ops::attention::Settings;

use super::checks::{self, HeadWidth};
use super::decoder::{self, Decoder, Ends};
use crate::error::{NnError, Result};
use crate::family::{Conditions, Examples, Family, MOST_EXTENT, MOST_LAYERS, ModelSpec, Searchable};
use crate::hugging_face::{HuggingFaceModel, gpt2};
use crate::layers::{Activation, Embedding, GptBlock, GptBlockSizes, Heads, LayerNorm};
use crate::model::{Model, Stage};
use crate::parameters::Parameters;
use crate::placements::PlacementTable;
use crate::recompute::Recompute;
use crate::width_scaling::WidthScaling;

system::names! {
    /// Kind of position table.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PositionKind {
        /// A trained parameter.
        Learned = "learned",
        /// A constant buffer of sines and cosines.
        Sinusoidal = "sinusoidal",
    }
}

section! {
    /// Sizes and options of a [`Gpt`].
    #[derive(Copy)]
    pub struct GptSizes = "model" {
        /// Number of transformer blocks.
        layers: usize = Row::count(1, MOST_LAYERS).default("4");
        /// Number of attention heads; `width` must be a multiple of it.
        heads: usize = Row::count(1, MOST_EXTENT).default("4");
        /// Number of values in a token's vector.
        width: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Width of a model whose settings hold for this one (maximal update parametrisation). A model that
        /// is m times as wide has matrices with initial values 1/√m, learning rates 1/m and weight decay m
        /// times as large, scores of tokens divided by m, and attention scores divided by √m. Embeddings,
        /// norms and biases are as in the base. With 0 nothing is scaled.
        base_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Width of a head in the model of `base_width`. With 0 that model has as many heads; with the heads'
        /// own width it has fewer, and attention scores are not scaled.
        base_head_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Number of tokens in a sequence.
        context: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Number of rows of the table of positions, and so the maximum length of a sequence. With 0 it is
        /// `context`.
        max_context: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Position embeddings: a "learned" table, or "sinusoidal" ones, which are not parameters.
        positions: PositionKind = choice!(
            PositionKind, [PositionKind::Learned, PositionKind::Sinusoidal]
        ).default("\"learned\"");
        /// Whether linear layers and norms have biases.
        biases: bool = Row::flag().default("true");
        /// Whether the output head uses the token embedding's table.
        tied: bool = Row::flag().default("true");
        /// Activation function of the feed-forward layers; "gelu" is its tanh form.
        activation: Activation = choice!(
            Activation,
            [
                Activation::Gelu,
                Activation::GeluErf,
                Activation::Relu,
                Activation::ReluSquared,
                Activation::Silu,
            ]
        ).default("\"gelu\"");
        /// Probability of dropout in training, for embeddings, attention weights and residual branches.
        dropout: f64 = Row::number(Interval::Fraction).default("0.0");
        /// Cap c of the scores of tokens, which become c·tanh(x/c), as in Gemma 2. With 0 they are not
        /// capped.
        logit_soft_cap: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Number of pieces into which the loss splits the vocabulary, or each lane's part of it, to compute
        /// the scores of one piece at a time. More than one piece needs less memory for a large vocabulary,
        /// but computes the scores again in backward.
        loss_pieces: usize = Row::count(1, MOST_EXTENT).default("1");
        /// Number of tokens in the vocabulary. With 0 it is the tokenizer's, rounded up to a multiple of 128.
        vocabulary: usize = Row::count(0, 1 << 31).default("0");
    }
}

/// The family `gpt`.
pub const GPT: Family = Family::new::<GptSizes>("gpt").of_tokens().with_hugging_face(gpt2::CONFIG);

impl ModelSpec for GptSizes {
    fn with_default_vocabulary(self, tokens: usize) -> Self {
        Self { vocabulary: if self.vocabulary == 0 { tokens } else { self.vocabulary }, ..self }
    }

    fn with_vocabulary_for(self, needed: usize, tokens: usize) -> Self {
        Self { vocabulary: if self.vocabulary < needed { tokens } else { self.vocabulary }, ..self }
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn width_scaling(&self) -> WidthScaling {
        let heads = [self.width / self.heads.max(1), self.base_head_width];
        WidthScaling::new([self.width, self.base_width], heads)
    }

    fn layers_key(&self) -> &'static str {
        Self::layers
    }

    fn examples(&self) -> Examples {
        Examples::Tokens { vocabulary: self.vocabulary, context: self.context }
    }

    fn placements(&self) -> PlacementTable {
        let heads = Heads::multi(self.heads, self.width / self.heads.max(1));
        PlacementTable::new()
            .column("wte.weight", &[])
            .column("lm_head", &[])
            .column("h.*.attn_qkv", &heads.groups_of_columns())
            .row("h.*.attn_proj")
            .column("h.*.mlp_fc", &[])
            .row("h.*.mlp_proj")
            .with_sharded_rows()
    }

    fn divided_dimensions(&self, _lanes: usize) -> Vec<(&'static str, usize)> {
        vec![(Self::heads, self.heads), (Self::vocabulary, self.vocabulary)]
    }

    fn check(&self, raw: &RawValues, conditions: &Conditions) -> keys::Result<()> {
        let Self { heads, width, .. } = *self;
        if !width.is_multiple_of(heads) {
            let reason = format!("model.width = {width} is not a multiple of model.heads = {heads}");
            return Err(raw.conflict(&[Self::width, Self::heads], reason));
        }
        let head = HeadWidth {
            value: width / heads,
            from: format!("model.width = {width} over model.heads = {heads} makes {}", width / heads),
            keys: &[Self::heads, Self::width],
        };
        head.check(raw, conditions.compute)?;
        checks::check_base(
            raw,
            [Self::base_width, Self::base_head_width],
            [self.base_width, self.base_head_width],
        )?;
        if (1..self.context).contains(&self.max_context) {
            let context = self.context;
            let most = self.max_context;
            let reason = format!("model.context = {context} is more than model.max_context = {most}");
            return Err(raw.conflict(&[Self::context, Self::max_context], reason));
        }
        self.check_bytes(raw, conditions.micro_batch_size)
    }

    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>> {
        Ok(Box::new(Gpt::new(parameters, *self, stage)?.recomputing(recompute)))
    }

    fn cached_heads(&self) -> Option<Heads> {
        Some(Heads::multi(self.heads, self.width / self.heads))
    }

    fn hugging_face(&self) -> Option<HuggingFaceModel> {
        let is_scaled = !self.width_scaling().is_none();
        if is_scaled || !self.biases || self.positions != PositionKind::Learned || self.logit_soft_cap > 0.0 {
            return None;
        }
        gpt2::model(&gpt2::Sizes {
            layers: self.layers,
            heads: self.heads,
            width: self.width,
            positions: self.position_rows(),
            vocabulary: self.vocabulary,
            tied: self.tied,
            activation: self.activation.name(),
            dropout: self.dropout,
        })
    }

    fn summary(&self) -> String {
        let Self { layers, heads, width, context, .. } = self;
        format!("GPT, {layers} layers, width {width}, {heads} heads, context {context}")
    }

    fn searchable(&self) -> Vec<Searchable> {
        let alone = |_: usize, _: usize| Vec::new();
        let heads = |width: usize, head: usize| vec![format!("{}={}", GptSizes::heads, width / head)];
        let tokens = checks::context_step(self.context);
        vec![
            Searchable { key: Self::layers, value: self.layers, step: 1, follows: alone },
            Searchable { key: Self::width, value: self.width, step: self.width / self.heads, follows: heads },
            Searchable { key: Self::context, value: self.context, step: tokens, follows: alone },
        ]
    }

    fn with_context(&self, context: usize) -> Vec<String> {
        let rows = format!("{}={}", Self::max_context, self.position_rows());
        vec![format!("{}={context}", Self::context), rows]
    }
}

impl GptSizes {
    /// Returns the number of rows of the position table.
    fn position_rows(&self) -> usize {
        if self.max_context == 0 { self.context } else { self.max_context }
    }

    /// Rejects sizes whose number of bytes overflows. This is no estimate of memory. A block's weights are
    /// roughly 12·width²; the largest activations of a micro-batch are the logits and the hidden layer of the
    /// MLP.
    fn check_bytes(&self, raw: &RawValues, micro_batch: usize) -> keys::Result<()> {
        let Self { layers, width, context, vocabulary, .. } = *self;
        let [of_layers, of_width] = [(Self::layers, layers), (Self::width, width)];
        let [of_context, of_vocabulary] = [(Self::context, context), (Self::vocabulary, vocabulary)];
        let of_positions = match self.max_context {
            0 => of_context,
            rows => (Self::max_context, rows),
        };
        let of_batch = ("train.micro_batch_size", micro_batch);
        checks::check_bytes(
            raw,
            &[
                ("the token embedding", 1, &[of_width, of_vocabulary]),
                ("the position embedding", 1, &[of_width, of_positions]),
                ("the blocks' weights", 12 * width, &[of_layers, of_width]),
                ("a micro-batch's logits", 1, &[of_context, of_vocabulary, of_batch]),
                ("a micro-batch's activations", 16, &[of_layers, of_width, of_context, of_batch]),
            ],
        )
    }
}

/// The GPT model, or one stage of it.
pub type Gpt = Decoder<GptBlock, LayerNorm>;

impl Gpt {
    /// Builds the layers of `stage` in the empty list `parameters`. Initial values are GPT-2's: standard
    /// deviation 0.02, and 0.02/√(2·layers) for projections into the residual stream.
    ///
    /// # Errors
    /// No model can have these sizes, or memory is exhausted.
    pub fn new(parameters: Parameters, sizes: GptSizes, stage: &Stage) -> Result<Self> {
        let GptSizes { layers, heads, width, biases, activation, dropout, .. } = sizes;
        if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
            return Err(NnError::Sizes(format!("a width of {width} does not divide into {heads} heads")));
        }
        let scaling = sizes.width_scaling();
        let positions = |parameters: &mut Parameters, embedding: Embedding| {
            let rows = sizes.position_rows();
            match sizes.positions {
                PositionKind::Learned => {
                    embedding.with_positions(parameters, "wpe.weight", rows, decoder::INITIAL)
                }
                PositionKind::Sinusoidal => embedding.with_sinusoids(parameters, "wpe", rows),
            }
        };
        let heads = Heads::multi(heads, width / heads);
        let scale = scaling.attention_scale(None, heads.width);
        let attention = Settings { scale, ..Settings::from(heads) };
        let block_sizes = GptBlockSizes { width, attention, biases, activation, dropout };
        let inits = decoder::initial(2 * layers, scaling);
        let blocks = |parameters: &mut Parameters| {
            let block = |index| GptBlock::new(parameters, index, block_sizes, inits);
            stage.layers.clone().map(block).collect()
        };
        let norm = |parameters: &mut Parameters| {
            let norm = if biases { LayerNorm::new } else { LayerNorm::without_bias };
            norm(parameters, "ln_f", width)
        };
        Decoder::build(parameters, sizes.ends(), stage, positions, blocks, norm)
    }
}

impl GptSizes {
    fn ends(&self) -> Ends {
        Ends {
            layers: self.layers,
            width: self.width,
            vocabulary: self.vocabulary,
            tied: self.tied,
            dropout: self.dropout,
            embedding_scale: 1.0,
            logit_scale: self.width_scaling().scores(),
            soft_cap: self.logit_soft_cap,
            loss_pieces: self.loss_pieces,
            context: self.context,
            table: "wte.weight",
            head: if self.tied { "head" } else { "lm_head" },
        }
    }
}
