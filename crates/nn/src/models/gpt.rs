//! GPT-2: token and position embeddings, pre-norm blocks, a final norm, and an output head tied to the tokens'.

use autograd::{Tape, Var, ops};
use device::{DType, Device};
use tensor::Tensor;

use crate::error::{NnError, Result};
use crate::init::Init;
use crate::layers::{Block, Embedding, Heads, LayerNorm, Linear, Residual, Stack, Stream, within};
use crate::model::{Input, Model, Stage};
use crate::parameters::Parameters;
use crate::recompute::Recompute;

/// The sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptSizes {
    /// Blocks.
    pub layers: usize,
    /// Attention heads; they divide `width`.
    pub heads: usize,
    /// Elements of a token's vector.
    pub width: usize,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Distinct tokens.
    pub vocabulary: usize,
}

/// The model, or one stage of it.
#[derive(Debug)]
pub struct Gpt {
    parameters: Parameters,
    embedding: Option<Embedding>,
    blocks: Stack<Block>,
    head: Option<Head>,
}

#[derive(Debug)]
struct Head {
    norm: LayerNorm,
    output: Linear,
}

impl Gpt {
    /// Builds the layers of `stage`, computing in `dtype`, with initial values from `seed`, as GPT-2 starts: deviation 0.02, and
    /// 0.02/√(2·layers) for what feeds the residual stream. Errors: sizes that make no model, out of memory.
    pub fn new(device: &Device, sizes: GptSizes, stage: &Stage, seed: u64, dtype: DType) -> Result<Self> {
        let GptSizes { layers, heads, width, context, vocabulary } = sizes;
        if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
            return Err(NnError::Sizes(format!("a width of {width} does not divide into {heads} heads")));
        }
        if stage.of != layers || stage.layers.is_empty() || stage.layers.end > layers {
            return Err(NnError::Sizes(format!("layers {:?} are no stage of {layers} layers", stage.layers)));
        }
        let mut parameters = Parameters::new(device, seed, dtype);
        let init = Init::Normal(0.02);
        let projection = Init::Normal(0.02 / ((2 * layers) as f32).sqrt());
        let embedding =
            match stage.is_first() {
                true => Some(
                    Embedding::new(&mut parameters, "wte.weight", [vocabulary, width], init)?
                        .with_positions(&mut parameters, "wpe.weight", context, init)?,
                ),
                false => None,
            };
        if stage.is_first() && !stage.is_last() {
            parameters.share("wte.weight")?;
        }
        let heads = Heads::multi(heads, width / heads);
        let block = |index| Block::new(&mut parameters, index, width, heads, init, projection);
        let blocks = stage.layers.clone().map(block).collect::<Result<Vec<_>>>()?;
        let head = match stage.is_last() {
            true => Some(Head::new(&mut parameters, stage, sizes)?),
            false => None,
        };
        Ok(Gpt { parameters, embedding, blocks: Stack::new(blocks), head })
    }

    /// The same model, of whose blocks those that `recompute` says compute their activations again in backward.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> Self {
        Gpt { blocks: self.blocks.recomputing(recompute), ..self }
    }
}

impl Head {
    fn new(parameters: &mut Parameters, stage: &Stage, sizes: GptSizes) -> Result<Self> {
        let norm = LayerNorm::new(parameters, "ln_f", sizes.width)?;
        if !stage.is_first() {
            // The last stage holds a copy of the tied table, which starts with the same values.
            parameters.create_unused("wte.weight", [sizes.vocabulary, sizes.width], Init::Normal(0.02))?;
            parameters.share("wte.weight")?;
        }
        let output = Linear::tied(parameters, "head", "wte.weight")?;
        Ok(Head { norm, output })
    }
}

impl Model for Gpt {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var> {
        let start = match (&self.embedding, input) {
            (Some(embedding), Input::Batch(tokens)) => embedding.forward(tape, &tokens)?,
            (None, Input::Hidden(hidden)) => hidden,
            (Some(_), Input::Hidden(_)) => return Err(NnError::StageInput { expected: "a batch of tokens" }),
            (None, Input::Batch(_)) => {
                return Err(NnError::StageInput { expected: "the stage before's output" });
            }
        };
        let stream = self.blocks.forward(tape, Residual::new(start))?;
        match &self.head {
            None => stream.close(tape),
            Some(head) => {
                let (sum, normalised) = stream.normalise(tape, &head.norm)?;
                drop(sum);
                head.output.forward(tape, normalised)
            }
        }
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        within(tape, "loss", || Ok(ops::cross_entropy(tape, prediction, targets, scale)?))
    }
}
