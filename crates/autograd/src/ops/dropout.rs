//! Dropout.

use device::Category;
use tensor::Tensor;
use tensor::ops;
use tensor::ops::dropout::Mask;

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{TensorRanks, Var, map};
use crate::tape::Tape;

/// How elements of a sharded array are numbered for random draws.
#[derive(Clone, Copy, Debug, Default)]
enum Numbering {
    /// By their index in the array, which is whole.
    #[default]
    Whole,
    /// By their index in the whole array; the rank holds some of its rows.
    Rows,
    /// By their index in a shard. Each of this many local shards is a site of its own.
    Shards(usize),
}

/// A site in a model at which elements are dropped in training.
#[derive(Clone, Debug)]
pub struct Dropout {
    seed: u64,
    site: String,
    probability: f64,
    /// How the arrays' elements are numbered.
    numbering: Numbering,
}

impl Dropout {
    /// Creates a site that drops elements with `probability`, 0 to below 1. The name `site` must be unique in
    /// the model.
    pub fn new(seed: u64, site: &str, probability: f64) -> Self {
        Dropout { seed, site: site.to_owned(), probability, numbering: Numbering::Whole }
    }

    /// Uses the site for arrays whose rows are sharded along [`collective::Axis::Tensor`].
    #[must_use]
    pub fn over_rows(self) -> Self {
        Dropout { numbering: Numbering::Rows, ..self }
    }

    /// Uses a separate site for each shard of a layer; `shards` of them are local.
    #[must_use]
    pub fn of_shards(self, shards: usize) -> Self {
        Dropout { numbering: Numbering::Shards(shards), ..self }
    }

    /// Returns the mask for `x`, the local elements.
    fn mask_of(&self, tape: &Tape, x: &Tensor) -> Option<Mask> {
        let first = match self.numbering {
            Numbering::Rows => TensorRanks::new(tape, true).first_shard(x.elements()),
            Numbering::Whole | Numbering::Shards(_) => 0,
        };
        self.mask(tape).map(|mask| mask.from(first))
    }

    /// Returns the mask for the tape's current block; `None` outside training, or if the probability is 0.
    pub(super) fn mask(&self, tape: &Tape) -> Option<Mask> {
        let drops = tape.mode().is_training() && self.probability > 0.0;
        let pass = tape.pass();
        drops.then(|| {
            let mut site = self.site.clone();
            if let Numbering::Shards(shards) = self.numbering {
                let first = TensorRanks::new(tape, false).first_shard(shards);
                site.push_str(&format!(".{}", first + tape.block().unwrap_or_default().shard));
            }
            if let Some(piece) = &pass.piece {
                site.push_str(&format!(".piece.{}", piece.number));
            }
            Mask::new(self.seed, &site, pass.micro_batch, self.probability)
        })
    }
}

/// Backward of [`dropout`], which saves only the mask's key.
#[derive(Debug)]
pub struct DropoutRule {
    mask: Mask,
}

/// Drops elements of `x` and scales the others, in place if no other tensor shares its storage. Returns `x`
/// unchanged outside training.
pub fn dropout(tape: &Tape, x: Var, dropout: &Dropout) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "dropout", [x])?;
        tape.begin("dropout")?;
        let Some(mask) = dropout.mask_of(tape, x.tensor()) else { return Ok(x) };
        let source = x.source();
        let output = named("dropout", ops::dropout::apply(x.into_tensor(), mask, Category::Activation))?;
        tape.record_one(&[source], output, || DropoutRule { mask })
    })
}

impl Rule for DropoutRule {
    fn operator(&self) -> &'static str {
        "dropout"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        Ok(vec![Some(ops::dropout::apply(gradient, self.mask, Category::ActivationGradient)?)])
    }
}
