//! Dropout.

use device::Category;
use tensor::Tensor;
use tensor::ops;
use tensor::ops::dropout::Mask;

use super::lanes::LanePlane;
use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::tape::{Tape, Var};

/// A site in a model at which elements are dropped in training.
#[derive(Clone, Debug)]
pub struct Dropout {
    seed: u64,
    site: String,
    probability: f64,
    /// Whether the rows of arrays are divided along [`collective::Axis::Tensor`].
    divides_rows: bool,
}

impl Dropout {
    /// Returns a site named `site`, unique in the model, that drops elements with `probability`, 0 to below
    /// 1.
    pub fn new(seed: u64, site: &str, probability: f64) -> Self {
        Dropout { seed, site: site.to_owned(), probability, divides_rows: false }
    }

    /// Returns the same site for arrays whose rows are divided along [`collective::Axis::Tensor`].
    #[must_use]
    pub fn of_divided_rows(self) -> Self {
        Dropout { divides_rows: true, ..self }
    }

    /// The mask for `x`, the rows that are here.
    fn mask_of(&self, tape: &Tape, x: &Tensor) -> Option<Mask> {
        let first = if self.divides_rows { LanePlane::of(tape).first_lane(x.elements()) } else { 0 };
        self.mask(tape).map(|mask| mask.from(first))
    }

    /// The mask of the tape's micro-batch; `None` outside training, and if the probability is 0.
    pub(super) fn mask(&self, tape: &Tape) -> Option<Mask> {
        let drops = tape.mode().is_training() && self.probability > 0.0;
        let pass = tape.pass();
        let mask = |site: &str| Mask::new(self.seed, site, pass.micro_batch, self.probability);
        drops.then(|| match &pass.piece {
            Some(piece) => mask(&format!("{}.piece.{}", self.site, piece.number)),
            None => mask(&self.site),
        })
    }
}

/// Backward of [`dropout`], which saves only the mask's key.
#[derive(Debug)]
pub struct DropoutRule {
    mask: Mask,
}

/// Drops elements of `x` and scales the others, in place if no other tensor views its storage; returns `x`
/// itself outside training.
///
/// # Errors
/// As [`ops::dropout::apply`].
pub fn dropout(tape: &Tape, x: Var, dropout: &Dropout) -> Result<Var> {
    let [x] = autocast(tape, "dropout", [x])?;
    tape.begin("dropout")?;
    let Some(mask) = dropout.mask_of(tape, x.tensor()) else { return Ok(x) };
    let source = x.source();
    let output = named("dropout", ops::dropout::apply(x.into_tensor(), mask, Category::Activation))?;
    tape.record_one(&[source], output, || DropoutRule { mask })
}

impl Rule for DropoutRule {
    fn operator(&self) -> &'static str {
        "dropout"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = only(outputs)?;
        Ok(vec![Some(ops::dropout::apply(gradient, self.mask, Category::ActivationGradient)?)])
    }
}
