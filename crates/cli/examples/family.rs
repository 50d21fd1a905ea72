//! Adds a model family to Plimsoll: the program has every command, grid, plan and checkpoint for it.
//!
//! `cargo run --release --example family -- train --set model.kind='"squared"' --set train.steps=20`
//!
//! A family is one record: the keys of `[model]` with their checks, the examples that it learns from, and a
//! function that builds the layers of one pipeline stage. This one is a transformer without positions, whose
//! feed-forward layers square their ReLU. The crate `tests/outside` adds an operator, a norm, and the table
//! by which ranks share layers.

use plimsoll::autograd::{Tape, Var, ops};
use plimsoll::keys::{self, RawValues, Row, section};
use plimsoll::nn::layers::{
    Activation, Embedding, GptBlock, GptBlockSizes, Heads, LayerNorm, Linear, Residual, Stack, Stream,
};
use plimsoll::nn::{
    Conditions, Examples, Family, Init, Input, Model, ModelSpec, NnError, Parameters, Recompute, Result,
    Stage,
};
use plimsoll::tensor::Tensor;

section! {
    /// Keys of `[model]`. Each is a row with its range, its default and its documentation.
    #[derive(Copy, Eq)]
    pub struct Sizes = "model" {
        /// Number of transformer blocks.
        layers: usize = Row::count(1, 1000).default("2");
        /// Number of attention heads; `width` must be a multiple of it.
        heads: usize = Row::count(1, 1000).default("2");
        /// Number of values in a token's vector.
        width: usize = Row::count(1, 100_000).default("32");
        /// Number of tokens in a sequence.
        context: usize = Row::count(1, 100_000).default("32");
        /// Number of tokens in the vocabulary. With 0 it is the tokenizer's.
        vocabulary: usize = Row::count(0, 1_000_000).default("0");
    }
}

/// The record.
const SQUARED: Family = Family::new::<Sizes>("squared").of_tokens();

impl ModelSpec for Sizes {
    fn with_default_vocabulary(self, tokens: usize) -> Self {
        Self { vocabulary: if self.vocabulary == 0 { tokens } else { self.vocabulary }, ..self }
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

    /// Errors name the keys, and with them file and line.
    fn check(&self, raw: &RawValues, _: &Conditions) -> keys::Result<()> {
        let Sizes { heads, width, .. } = self;
        match width.is_multiple_of(*heads) {
            true => Ok(()),
            false => {
                let reason = format!("model.width = {width} is not a multiple of model.heads = {heads}");
                Err(raw.conflict(&[Self::width, Self::heads], reason))
            }
        }
    }

    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>> {
        Ok(Box::new(Squared::new(parameters, *self, stage, recompute)?))
    }

    fn summary(&self) -> String {
        format!("squared ReLU, {} layers, width {}", self.layers, self.width)
    }
}

/// The model, or one stage of it: only the first has the embedding, only the last the head.
struct Squared {
    parameters: Parameters,
    embedding: Option<Embedding>,
    blocks: Stack<GptBlock>,
    head: Option<(LayerNorm, Linear)>,
}

impl Squared {
    fn new(mut parameters: Parameters, sizes: Sizes, stage: &Stage, recompute: Recompute) -> Result<Self> {
        let Sizes { heads, width, vocabulary, .. } = sizes;
        let init = Init::Normal(0.02);
        let embedding = match stage.is_first() {
            true => Some(Embedding::new(&mut parameters, "tokens", [vocabulary, width], init)?),
            false => None,
        };
        let block = GptBlockSizes {
            width,
            attention: Heads::multi(heads, width / heads).into(),
            biases: false,
            activation: Activation::ReluSquared,
            dropout: 0.0,
        };
        // The stage's layers, under the numbers that they have in the whole model.
        let blocks =
            stage.layers.clone().map(|index| GptBlock::new(&mut parameters, index, block, [init; 2]));
        let blocks = Stack::new(blocks.collect::<Result<_>>()?).recomputing(recompute);
        let head = match stage.is_last() {
            true => {
                parameters.begin_unit();
                let norm = LayerNorm::without_bias(&mut parameters, "norm", width)?;
                Some((norm, Linear::head(&mut parameters, "head", [width, vocabulary], init, None)?))
            }
            false => None,
        };
        Ok(Squared { parameters, embedding, blocks, head })
    }
}

impl Model for Squared {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Maps tokens `[batch, time]`, or vectors of the stage before, to scores `[batch, time, vocabulary]`, or
    /// to vectors `[batch, time, width]` for the stage after.
    fn forward(&self, tape: &Tape, input: Input) -> Result<Var> {
        let x_bld = match (&self.embedding, input) {
            (Some(embedding), Input::Batch(tokens_bl)) => embedding.forward(tape, &tokens_bl)?,
            (None, Input::Hidden(hidden_bld)) => hidden_bld,
            _ => return Err(NnError::StageInput { expected: "tokens at the start, and vectors after it" }),
        };
        let y_bld = self.blocks.forward(tape, Residual::new(x_bld))?.close(tape)?;
        match &self.head {
            Some((norm, output)) => output.forward(tape, norm.forward(tape, y_bld)?),
            None => Ok(y_bld),
        }
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        Ok(ops::cross_entropy(tape, prediction, targets, scale)?)
    }
}

fn main() {
    plimsoll::main([SQUARED])
}

#[test]
fn the_family_trains_with_equal_weights_on_every_grid() {
    plimsoll::nn::Families::register([SQUARED]).unwrap();
    let weights = |grid: &str| {
        let text = "model.kind = 'squared'\ndata.paths = ['crates/cli/examples/*.rs']\n\
                    train = { steps = 4, micro_batch_size = 2, global_batch_size = 8 }\nparallel.lanes = 4\n";
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let config = config::RunConfig::parse(text, "family.toml", root, &[grid.to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let run_dir = Some(directory.path().join("run"));
        let device = worker::DeviceChoice::from_name("cpu").unwrap();
        let options = run::RunOptions { device, run_dir, quiet: true, ..run::RunOptions::default() };
        run::train(config, options).unwrap().summary.weights_sha256
    };
    let alone = weights("parallel.data=1");
    for grid in ["parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=3"] {
        assert_eq!(weights(grid), alone, "{grid}");
    }
}
