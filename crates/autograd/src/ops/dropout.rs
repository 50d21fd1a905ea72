//! Dropout.

use device::Category;
use tensor::Tensor;
use tensor::ops;
use tensor::ops::dropout::Mask;

use super::site::Site;
use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// A site in a model at which elements are dropped in training.
#[derive(Clone, Debug)]
pub struct Dropout {
    site: Site,
    probability: f64,
}

impl Dropout {
    /// Creates a site that drops elements with `probability`, 0 to below 1. The name `site` must be unique in
    /// the model.
    pub fn new(seed: u64, site: &str, probability: f64) -> Self {
        Dropout { site: Site::new(seed, site), probability }
    }

    /// Uses the site for arrays whose rows are sharded along [`collective::Axis::Tensor`].
    #[must_use]
    pub fn over_rows(self) -> Self {
        Dropout { site: self.site.over_rows(), ..self }
    }

    /// Uses a separate site for each shard of a layer; `shards` of them are local.
    #[must_use]
    pub fn of_shards(self, shards: usize) -> Self {
        Dropout { site: self.site.of_shards(shards), ..self }
    }

    /// Returns the mask for `x`, the local elements.
    fn mask_of(&self, tape: &Tape, x: &Tensor) -> Option<Mask> {
        self.mask(tape).map(|mask| mask.from(self.site.first(tape, x)))
    }

    /// Returns the mask for the tape's current block; `None` outside training, or if the probability is 0.
    pub(super) fn mask(&self, tape: &Tape) -> Option<Mask> {
        let drops = tape.mode().is_training() && self.probability > 0.0;
        let mask =
            || Mask::new(self.site.seed, &self.site.name(tape), tape.pass().micro_batch, self.probability);
        drops.then(mask)
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
