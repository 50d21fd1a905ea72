//! Uniform noise in training.

use device::Category;
use tensor::{Tensor, ops};

use super::site::Site;
use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

const OPERATOR: &str = "noise";

/// A site in a model at which uniform noise is added in training.
#[derive(Clone, Debug)]
pub struct Noise {
    site: Site,
}

impl Noise {
    /// Returns a site named `site`, unique in the model.
    pub fn new(seed: u64, site: &str) -> Self {
        Noise { site: Site::new(seed, site) }
    }

    /// Returns the same site for arrays whose rows are sharded along [`collective::Axis::Tensor`].
    #[must_use]
    pub fn over_rows(self) -> Self {
        Noise { site: self.site.over_rows() }
    }

    /// The noise for `x`, the elements that are here; `None` outside training.
    fn for_elements(&self, tape: &Tape, x: &Tensor, magnitude: f32) -> Option<ops::noise::Noise> {
        let number = tape.pass().micro_batch;
        let noise = || ops::noise::Noise::new(self.site.seed, &self.site.name(tape), number, magnitude);
        tape.mode().is_training().then(|| noise().from(self.site.first(tape, x)))
    }
}

/// Backward of [`noise`]: the gradient of the result.
#[derive(Debug)]
pub struct NoiseRule;

/// Adds uniform numbers in \[−`magnitude`, `magnitude`) to `x`, which is overwritten if no other tensor views
/// its storage; returns `x` itself outside training.
pub fn noise(tape: &Tape, x: Var, noise: &Noise, magnitude: f32) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, OPERATOR, [x])?;
        tape.begin(OPERATOR)?;
        let Some(noise) = noise.for_elements(tape, x.tensor(), magnitude) else { return Ok(x) };
        let source = x.source();
        let output = named(OPERATOR, ops::noise::add(x.into_tensor(), noise, Category::Activation))?;
        tape.record_one(&[source], output, || NoiseRule)
    })
}

impl Rule for NoiseRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        Ok(vec![Some(only(outputs)?)])
    }
}
