//! Dropout in training.

use autograd::{Tape, Var, ops};

use super::within;
use crate::error::Result;
use crate::parameters::Parameters;
use crate::placements::ParallelStyle;

/// A dropout site, or no dropout.
#[derive(Clone, Debug)]
pub struct Dropout {
    site: Option<ops::Dropout>,
}

impl Dropout {
    /// Creates a site that drops elements with `probability`, 0 to below 1. Random numbers depend on the
    /// model's seed and the unique name `site`. With probability 0, no operator is called. Applies to arrays
    /// between layers, whose rows may be sharded.
    pub fn new(parameters: &Parameters, site: &str, probability: f64) -> Self {
        Self::with(parameters, site, probability, |site| match parameters.shards_rows() {
            true => site.over_rows(),
            false => site,
        })
    }

    /// Does the same as [`Dropout::new`] for arrays inside a sharded layer; each shard has a site of its own.
    pub(super) fn of_shards(parameters: &Parameters, site: &str, probability: f64) -> Self {
        let shards = parameters.shards();
        Self::with(parameters, site, probability, |site| match shards.is_divided() {
            true => site.of_shards(shards.here),
            false => site,
        })
    }

    /// Does the same as [`Dropout::new`] for the input of a linear layer sharded by `style`. Shards of a
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

    /// Creates a layer that drops nothing.
    pub fn none() -> Self {
        Dropout { site: None }
    }

    /// The site, for an operator that applies dropout itself.
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
