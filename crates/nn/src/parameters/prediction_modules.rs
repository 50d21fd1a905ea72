//! Modules of a model that predict later tokens than the next one.

use super::Parameters;

/// Maximum number of modules that predict later tokens.
pub const MOST_MODULES: usize = 15;

/// Modules of a model that predict tokens after the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PredictionModules {
    /// Number of modules; the n-th predicts the n-th token after the next one.
    pub count: usize,
    /// Factor of the mean of their losses.
    pub weight: f64,
}

impl Parameters {
    /// Returns the same list for a model with modules that predict later tokens.
    #[must_use]
    pub fn predicting(self, modules: PredictionModules) -> Self {
        Parameters { modules, ..self }
    }

    /// The modules of [`Parameters::predicting`]; by default none.
    pub(crate) fn prediction_modules(&self) -> PredictionModules {
        self.modules
    }
}
