//! Dropout in training.

use autograd::{Tape, Var, ops};

use super::within;
use crate::error::Result;
use crate::parameters::Parameters;
use crate::placements::ParallelStyle;

/// A site at which elements are dropped in training, or none.
#[derive(Clone, Debug)]
pub struct Dropout {
    site: Option<ops::Dropout>,
}

impl Dropout {
    /// Drops elements with `probability`, 0 to below 1, by random numbers of the model's seed and of `site`,
    /// a unique name. With 0 no operator is called. Arrays are those between layers, whose rows may be in
    /// shards.
    pub fn new(parameters: &Parameters, site: &str, probability: f64) -> Self {
        Self::with(parameters, site, probability, |site| match parameters.shards_rows() {
            true => site.over_rows(),
            false => site,
        })
    }

    /// [`Dropout::new`] of arrays within a layer that is in shards, each of which has a site of its own.
    pub(super) fn of_shards(parameters: &Parameters, site: &str, probability: f64) -> Self {
        let shards = parameters.shards();
        Self::with(parameters, site, probability, |site| match shards.is_divided() {
            true => site.of_shards(shards.here),
            false => site,
        })
    }

    /// [`Dropout::new`] of the input of a linear layer that is divided by `style`. Shards of a
    /// column-parallel layer have the same input.
    pub(super) fn of_layer_input(
        parameters: &Parameters,
        site: &str,
        probability: f64,
        style: Option<&ParallelStyle>,
    ) -> Self {
        match style {
            Some(ParallelStyle::Row) => Self::of_shards(parameters, site, probability),
            Some(ParallelStyle::Column(_)) => Self::with(parameters, site, probability, |site| site),
            None => Self::new(parameters, site, probability),
        }
    }

    fn with(
        parameters: &Parameters,
        site: &str,
        probability: f64,
        numbered: impl FnOnce(ops::Dropout) -> ops::Dropout,
    ) -> Self {
        let new = || numbered(ops::Dropout::new(parameters.seed(), site, probability));
        Dropout { site: (probability > 0.0).then(new) }
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
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        match &self.site {
            Some(site) => within(tape, "dropout", || Ok(ops::dropout(tape, x, site)?)),
            None => Ok(x),
        }
    }
}
