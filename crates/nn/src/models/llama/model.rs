//! The model: token embeddings, pre-norm blocks with rotary positions, grouped heads and gated feed-forward
//! layers, a final norm, and an output head.

use autograd::{Tape, Var};
use tensor::Tensor;

use super::sizes::LlamaSizes;
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::layers::{
    Activation, Dropout, Embedding, Linear, LlamaBlock, Residual, RmsNorm, RotaryTable, Stack, Stream,
    TokenHead,
};
use crate::model::{Input, Model, Stage};
use crate::parameters::Parameters;
use crate::recompute::Recompute;

/// Name of the token table, which a tied head also uses.
const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of an untied head, without `.weight`.
const HEAD: &str = "lm_head";

/// The model, or one stage of it.
#[derive(Debug)]
pub struct Llama {
    parameters: Parameters,
    embedding: Option<(Embedding, Dropout)>,
    blocks: Stack<LlamaBlock>,
    head: Option<Head>,
}

#[derive(Debug)]
struct Head {
    norm: RmsNorm,
    output: TokenHead,
}

impl Llama {
    /// Builds the layers of `stage` in `parameters`, which are empty. Initial values are normal with standard
    /// deviation 0.02, and 0.02/√(2·layers) for projections into the residual stream. Errors: sizes of which
    /// no model can be built, out of memory.
    pub fn new(mut parameters: Parameters, sizes: &LlamaSizes, stage: &Stage) -> Result<Self> {
        let LlamaSizes { layers, width, context, vocabulary, tied, .. } = *sizes;
        if stage.of != layers || stage.layers.is_empty() || stage.layers.end > layers {
            return Err(NnError::Sizes(format!("layers {:?} are no stage of {layers} layers", stage.layers)));
        }
        let init = Init::Normal(0.02);
        let projection = Init::Normal(0.02 / ((2 * layers) as f32).sqrt());
        let embedding = match stage.is_first() {
            true => {
                let embedding = Embedding::new(&mut parameters, EMBEDDING, [vocabulary, width], init)?;
                Some((embedding, Dropout::new(&parameters, "embedding.dropout", sizes.dropout)))
            }
            false => None,
        };
        if tied && stage.is_first() && !stage.is_last() {
            parameters.share(EMBEDDING)?;
        }
        let table = RotaryTable::new(parameters.device(), sizes.frequencies(), context)?;
        let block_sizes = sizes.block();
        let block = |index| LlamaBlock::new(&mut parameters, index, block_sizes, &table, [init, projection]);
        let blocks = stage.layers.clone().map(block).collect::<Result<Vec<_>>>()?;
        let head = match stage.is_last() {
            true => Some(Head::new(&mut parameters, stage, sizes, init)?),
            false => None,
        };
        Ok(Llama { parameters, embedding, blocks: Stack::new(blocks), head })
    }

    /// Returns the same model, in which the blocks that `recompute` selects recompute their activations in
    /// backward.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> Self {
        Llama { blocks: self.blocks.recomputing(recompute), ..self }
    }

    /// The head, which the last stage has.
    fn head(&self) -> Result<&Head> {
        self.head.as_ref().ok_or(NnError::NotLast)
    }
}

impl Head {
    fn new(parameters: &mut Parameters, stage: &Stage, sizes: &LlamaSizes, init: Init) -> Result<Self> {
        let LlamaSizes { width, vocabulary, tied, .. } = *sizes;
        let norm = RmsNorm::new(parameters, "model.norm", width, sizes.block().epsilon)?;
        if !tied {
            let output = Linear::without_bias(parameters, HEAD, width, vocabulary, init, Activation::None)?;
            return Ok(Head {
                norm,
                output: TokenHead::new(output, sizes.logit_soft_cap, sizes.loss_pieces)?,
            });
        }
        if !stage.is_first() {
            // The last stage has a copy of the tied table with the same initial values.
            parameters.create_unused(EMBEDDING, [vocabulary, width], init)?;
            parameters.share(EMBEDDING)?;
        }
        let output = Linear::tied(parameters, HEAD, EMBEDDING)?;
        Ok(Head { norm, output: TokenHead::new(output, sizes.logit_soft_cap, sizes.loss_pieces)? })
    }
}

impl Model for Llama {
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
