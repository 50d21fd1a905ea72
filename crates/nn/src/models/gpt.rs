//! GPT-2: token and position embeddings, pre-norm blocks, a final norm, and an output head tied to the
//! tokens'.

use std::sync::Arc;

use autograd::{Tape, Var};
use device::DType;
use keys::{Given, Interval, Key, Row, Section, Value, choice, section};
use tensor::Tensor;

use super::checks::{self, HeadWidth};
use crate::error::{NnError, Result};
use crate::family::{Conditions, Examples, Family, MOST_EXTENT, MOST_LAYERS, ModelSpec, Searchable};
use crate::hugging_face::{HuggingFaceConfig, HuggingFaceModel, gpt2};
use crate::init::Init;
use crate::layers::{
    Activation, Block, BlockSizes, Dropout, Embedding, Heads, LayerNorm, Linear, Residual, Stack, Stream,
    TokenHead,
};
use crate::model::{Input, Model, Stage};
use crate::parameters::Parameters;
use crate::recompute::Recompute;

/// The kind of a table of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionKind {
    /// A parameter.
    Learned,
    /// Sines and cosines, a buffer.
    Sinusoidal,
}

impl PositionKind {
    /// Returns its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            PositionKind::Learned => "learned",
            PositionKind::Sinusoidal => "sinusoidal",
        }
    }
}

section! {
    /// The sizes of a [`Gpt`].
    #[derive(Copy)]
    pub struct GptSizes = "model" {
        /// Transformer blocks.
        layers: usize = Row::count(1, MOST_LAYERS).default("4");
        /// Attention heads; they divide the width.
        heads: usize = Row::count(1, MOST_EXTENT).default("4");
        /// Values in a token's vector.
        width: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Tokens in a sequence.
        context: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Rows of the table of positions, the most tokens that a sequence can have; 0: as many as `context`.
        max_context: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Positions: a learned table, or "sinusoidal", which are no parameters.
        positions: PositionKind = choice!(
            PositionKind, [PositionKind::Learned, PositionKind::Sinusoidal]
        ).default("\"learned\"");
        /// Whether linear layers and norms have biases.
        biases: bool = Row::flag().default("true");
        /// Whether the output head uses the token embedding's table.
        tied: bool = Row::flag().default("true");
        /// Activation of the feed-forward layers; "gelu" is its tanh form.
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
        /// Probability of dropout in training: of embeddings, attention weights and residual branches.
        dropout: f64 = Row::number(Interval::Fraction).default("0.0");
        /// Scores of tokens are capped by c·tanh(x/c) with this c, as in Gemma 2; 0: they are not.
        logit_soft_cap: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Pieces of the vocabulary that the loss computes scores in, one after another, so that they are
        /// never whole: less memory for a large vocabulary, and the head is computed twice. 1: all at once.
        loss_pieces: usize = Row::count(1, MOST_EXTENT).default("1");
        /// Tokens that exist; 0: as many as the tokenizer has, rounded up to a multiple of 128.
        vocabulary: usize = Row::count(0, 1 << 31).default("0");
    }
}

/// Contexts are searched in multiples of this where the configured one is a multiple.
const CONTEXT_STEP: usize = 64;

/// The family `gpt`.
#[derive(Debug)]
pub struct GptFamily;

/// The family `gpt`.
pub static GPT: GptFamily = GptFamily;

impl Family for GptFamily {
    fn name(&self) -> &'static str {
        "gpt"
    }

    fn keys(&self) -> Vec<&'static Key> {
        GptSizes::keys()
    }

    fn takes_tokens(&self) -> bool {
        true
    }

    fn read(&self, given: &Given, tokens: usize) -> keys::Result<Arc<dyn ModelSpec>> {
        let sizes = GptSizes::read(given)?;
        let vocabulary = if sizes.vocabulary == 0 { tokens } else { sizes.vocabulary };
        Ok(Arc::new(GptSizes { vocabulary, ..sizes }))
    }

    fn hugging_face(&self) -> Option<HuggingFaceConfig> {
        Some(gpt2::CONFIG)
    }
}

impl ModelSpec for GptSizes {
    fn values(&self) -> Vec<Value> {
        Section::values(self)
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn layers_key(&self) -> &'static str {
        Self::layers
    }

    fn examples(&self) -> Examples {
        Examples::Tokens { vocabulary: self.vocabulary, context: self.context }
    }

    fn check(&self, given: &Given, conditions: &Conditions) -> keys::Result<()> {
        let Self { heads, width, vocabulary, .. } = *self;
        if !width.is_multiple_of(heads) {
            let reason = format!("model.width = {width} is not a multiple of model.heads = {heads}");
            return Err(given.conflict(&[Self::width, Self::heads], reason));
        }
        let head = HeadWidth {
            value: width / heads,
            from: format!("model.width = {width} over model.heads = {heads} makes {}", width / heads),
            keys: &[Self::heads, Self::width],
        };
        head.check(given, conditions.compute)?;
        if (1..self.context).contains(&self.max_context) {
            let (context, most) = (self.context, self.max_context);
            let reason = format!("model.context = {context} is more than model.max_context = {most}");
            return Err(given.conflict(&[Self::context, Self::max_context], reason));
        }
        checks::vocabulary(given, conditions, vocabulary)?;
        self.check_bytes(given, conditions.micro_batch_size)
    }

    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>> {
        Ok(Box::new(Gpt::new(parameters, *self, stage)?.recomputing(recompute)))
    }

    fn cached_heads(&self) -> Option<Heads> {
        Some(Heads::multi(self.heads, self.width / self.heads))
    }

    fn hugging_face(&self) -> Option<HuggingFaceModel> {
        if !self.biases || self.positions != PositionKind::Learned || self.logit_soft_cap > 0.0 {
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
        let tokens = if self.context.is_multiple_of(CONTEXT_STEP) { CONTEXT_STEP } else { 1 };
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

    fn advice(&self, compute: DType) -> Option<String> {
        checks::vocabulary_advice(self.vocabulary, compute)
    }
}

impl GptSizes {
    /// Rows of the table of positions.
    fn position_rows(&self) -> usize {
        if self.max_context == 0 { self.context } else { self.max_context }
    }

    /// Keeps sizes within what can be counted; this is no estimate of memory. The weights of a block are
    /// roughly 12·width²; the widest activations of a micro-batch are the logits and the hidden layer of the
    /// MLP.
    fn check_bytes(&self, given: &Given, micro_batch: usize) -> keys::Result<()> {
        let Self { layers, width, context, vocabulary, .. } = *self;
        let [of_layers, of_width] = [(Self::layers, layers), (Self::width, width)];
        let [of_context, of_vocabulary] = [(Self::context, context), (Self::vocabulary, vocabulary)];
        let of_positions = match self.max_context {
            0 => of_context,
            rows => (Self::max_context, rows),
        };
        let of_batch = ("train.micro_batch_size", micro_batch);
        checks::bytes(
            given,
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

/// The model, or one stage of it.
#[derive(Debug)]
pub struct Gpt {
    parameters: Parameters,
    embedding: Option<(Embedding, Dropout)>,
    blocks: Stack<Block>,
    head: Option<Head>,
}

#[derive(Debug)]
struct Head {
    norm: LayerNorm,
    output: TokenHead,
}

impl Gpt {
    /// Builds the layers of `stage` in `parameters`, which are empty. Initial values are those of GPT-2:
    /// standard deviation 0.02, and 0.02/√(2·layers) for projections into the residual stream. Errors: sizes
    /// of which no model can be built, out of memory.
    pub fn new(mut parameters: Parameters, sizes: GptSizes, stage: &Stage) -> Result<Self> {
        let GptSizes { layers, heads, width, vocabulary, .. } = sizes;
        if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
            return Err(NnError::Sizes(format!("a width of {width} does not divide into {heads} heads")));
        }
        if stage.of != layers || stage.layers.is_empty() || stage.layers.end > layers {
            return Err(NnError::Sizes(format!("layers {:?} are no stage of {layers} layers", stage.layers)));
        }
        let init = Init::Normal(0.02);
        let projection = Init::Normal(0.02 / ((2 * layers) as f32).sqrt());
        let embedding = match stage.is_first() {
            true => {
                let embedding = Embedding::new(&mut parameters, "wte.weight", [vocabulary, width], init)?;
                let rows = sizes.position_rows();
                let embedding = match sizes.positions {
                    PositionKind::Learned => {
                        embedding.with_positions(&mut parameters, "wpe.weight", rows, init)?
                    }
                    PositionKind::Sinusoidal => embedding.with_sinusoids(&mut parameters, "wpe", rows)?,
                };
                Some((embedding, Dropout::new(&parameters, "embedding.dropout", sizes.dropout)))
            }
            false => None,
        };
        if sizes.tied && stage.is_first() && !stage.is_last() {
            parameters.share("wte.weight")?;
        }
        let heads = Heads::multi(heads, width / heads);
        let GptSizes { biases, activation, dropout, .. } = sizes;
        let block_sizes = BlockSizes { width, heads, biases, activation, dropout };
        let block = |index| Block::new(&mut parameters, index, block_sizes, [init, projection]);
        let blocks = stage.layers.clone().map(block).collect::<Result<Vec<_>>>()?;
        let head = match stage.is_last() {
            true => Some(Head::new(&mut parameters, stage, sizes)?),
            false => None,
        };
        Ok(Gpt { parameters, embedding, blocks: Stack::new(blocks), head })
    }

    /// The same model, of whose blocks those that `recompute` says compute their activations again in
    /// backward.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> Self {
        Gpt { blocks: self.blocks.recomputing(recompute), ..self }
    }

    /// The head, which the last stage has.
    fn head(&self) -> Result<&Head> {
        self.head.as_ref().ok_or(NnError::NotLast)
    }
}

impl Head {
    fn new(parameters: &mut Parameters, stage: &Stage, sizes: GptSizes) -> Result<Self> {
        let norm = if sizes.biases { LayerNorm::new } else { LayerNorm::without_bias };
        let norm = norm(parameters, "ln_f", sizes.width)?;
        if !sizes.tied {
            let GptSizes { width, vocabulary, .. } = sizes;
            let init = Init::Normal(0.02);
            let output =
                Linear::without_bias(parameters, "lm_head", width, vocabulary, init, Activation::None)?;
            return Ok(Head {
                norm,
                output: TokenHead::new(output, sizes.logit_soft_cap, sizes.loss_pieces)?,
            });
        }
        if !stage.is_first() {
            // The last stage holds a copy of the tied table, which starts with the same values.
            parameters.create_unused("wte.weight", [sizes.vocabulary, sizes.width], Init::Normal(0.02))?;
            parameters.share("wte.weight")?;
        }
        let output = Linear::tied(parameters, "head", "wte.weight")?;
        Ok(Head { norm, output: TokenHead::new(output, sizes.logit_soft_cap, sizes.loss_pieces)? })
    }
}

impl Model for Gpt {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var> {
        let start = match (&self.embedding, input) {
            (Some((embedding, dropout)), Input::Batch(tokens)) => {
                dropout.forward(tape, embedding.forward(tape, &tokens)?)?
            }
            (None, Input::Hidden(hidden)) => hidden,
            (Some(_), Input::Hidden(_)) => return Err(NnError::StageInput { expected: "a batch of tokens" }),
            (None, Input::Batch(_)) => {
                return Err(NnError::StageInput { expected: "the stage before's output" });
            }
        };
        let stream = self.blocks.forward(tape, Residual::new(start))?;
        match &self.head {
            Some(head) if !tape.pass().fills_cache() => {
                let (sum, normalised) = stream.normalise(tape, &head.norm)?;
                drop(sum);
                head.output.forward(tape, normalised)
            }
            _ => stream.close(tape),
        }
    }

    fn scores(&self, tape: &Tape, prediction: Var) -> Result<Var> {
        self.head()?.output.scores(tape, prediction)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        self.head()?.output.loss(tape, prediction, targets, scale)
    }
}
