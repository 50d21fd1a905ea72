//! Dropout in training.

use autograd::{Tape, Var, ops};

use super::{LinearCut, within};
use crate::error::Result;
use crate::parameters::Parameters;

/// A site at which elements are dropped in training, or none.
#[derive(Clone, Debug)]
pub struct Dropout {
    site: Option<ops::Dropout>,
}

impl Dropout {
    /// Drops elements with `probability`, 0 to below 1, by random numbers of the model's seed and of `site`,
    /// a unique name. With 0 no operator is called. Each lane of a divided layer has a site of its own;
    /// between layers, rows are divided.
    pub fn new(parameters: &Parameters, site: &str, probability: f64) -> Self {
        let new = |site: &str| ops::Dropout::new(parameters.seed(), site, probability);
        let of_lane = || match parameters.lane() {
            Some(lane) => new(&format!("{site}.{lane}")),
            None if parameters.lanes().is_divided() => new(site).of_divided_rows(),
            None => new(site),
        };
        Dropout { site: (probability > 0.0).then(of_lane) }
    }

    /// Drops elements of the input of a linear layer that lanes divide by `cut`. Lanes that divide its
    /// outputs have the same input.
    pub(super) fn of_input(
        parameters: &Parameters,
        site: &str,
        probability: f64,
        cut: LinearCut<'_>,
    ) -> Self {
        match cut {
            LinearCut::Inputs => Self::new(parameters, site, probability),
            LinearCut::Outputs(_) => {
                let site = || ops::Dropout::new(parameters.seed(), site, probability);
                Dropout { site: (probability > 0.0).then(site) }
            }
        }
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
