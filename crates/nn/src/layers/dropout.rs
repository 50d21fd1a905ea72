//! Dropout in training.

use autograd::{Tape, Var, ops};

use super::within;
use crate::error::Result;
use crate::parameters::Parameters;

/// A site at which elements are dropped in training, or none.
#[derive(Clone, Debug)]
pub struct Dropout {
    site: Option<ops::Dropout>,
}

impl Dropout {
    /// Drops elements with `probability`, 0 to below 1, by random numbers of the model's seed and of `site`,
    /// a unique name. With 0 no operator is called.
    pub fn new(parameters: &Parameters, site: &str, probability: f64) -> Self {
        let drops = probability > 0.0;
        Dropout { site: drops.then(|| ops::Dropout::new(parameters.seed(), site, probability)) }
    }

    /// No dropout.
    pub fn none() -> Self {
        Dropout { site: None }
    }

    /// The site for an operator that drops elements itself.
    pub(super) fn site(&self) -> Option<&ops::Dropout> {
        self.site.as_ref()
    }

    /// Drops elements of `x`, of any shape.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        match &self.site {
            Some(site) => within(tape, "dropout", || Ok(ops::dropout(tape, x, site)?)),
            None => Ok(x),
        }
    }
}
