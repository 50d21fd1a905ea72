//! Example program with its own model family: a transformer with parallel blocks (Wang and Komatsuzaki,
//! *GPT-J*, 2021). Its RMS norm is composed of general operators, and a custom operator adds the branches.

mod model;
mod operator;

use plimsoll::autograd::precision::PrecisionTable;
use plimsoll::keys::{self, RawValues, Row, section};
use plimsoll::nn::{
    self, Conditions, Examples, Family, Model, ModelSpec, Parameters, PlacementTable, Recompute, Stage,
};
use plimsoll::tensor::ops::attention::Heads;

section! {
    /// Sizes of the model.
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

impl Sizes {
    fn head(&self) -> Heads {
        Heads::multi(self.heads, self.width / self.heads)
    }
}

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

    fn placements(&self) -> PlacementTable {
        PlacementTable::new()
            .column("tokens", &[])
            .column("*.qkv", &self.head().groups_of_columns())
            .row("*.mixed")
            .column("*.expand", &[])
            .row("*.project")
            .column("head", &[])
    }

    fn check(&self, raw: &RawValues, _: &Conditions) -> keys::Result<()> {
        let Sizes { heads, width, .. } = self;
        if width.is_multiple_of(*heads) {
            return Ok(());
        }
        let reason = format!("model.width = {width} is not a multiple of model.heads = {heads}");
        Err(raw.conflict(&[Self::width, Self::heads], reason))
    }

    fn build(
        &self,
        parameters: Parameters,
        stage: &Stage,
        recompute: Recompute,
    ) -> nn::Result<Box<dyn Model>> {
        Ok(Box::new(model::Transformer::new(parameters, *self, stage, recompute)?))
    }

    fn autocast(&self) -> PrecisionTable {
        PrecisionTable::default().with(operator::PRECISION)
    }

    fn summary(&self) -> String {
        format!("parallel blocks, {} layers, width {}", self.layers, self.width)
    }
}

fn main() {
    plimsoll::main([Family::new::<Sizes>("parallel-block").of_tokens()])
}
