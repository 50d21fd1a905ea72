//! Scaling of a model by its width, so that learning rates found at one width hold at others.
//!
//! The rules are maximal update parametrisation's for Adam (Yang and others, *Tensor Programs V: Tuning Large
//! Neural Networks via Zero-Shot Hyperparameter Transfer*, 2022, Table 8).

use crate::init::Init;
use crate::parameters::ParameterRole;

/// Factors of a model that is wider or narrower than its base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WidthScaling {
    /// Width of the model over the base width.
    ratio: f64,
    /// Factor of attention scores.
    attention: f64,
}

impl WidthScaling {
    /// A model as wide as its base.
    pub const NONE: Self = WidthScaling { ratio: 1.0, attention: 1.0 };

    /// Returns the scaling of a model of width `width` with heads of width `head`, each with its base width.
    /// Without `base` (0) nothing is scaled; without `base_head` (0) the base has as many heads.
    ///
    /// Attention scores are divided by the width of heads instead of its square root, and agree at the base.
    #[must_use]
    pub fn new([width, base]: [usize; 2], [head, base_head]: [usize; 2]) -> Self {
        if base == 0 {
            return Self::NONE;
        }
        let ratio = width as f64 / base as f64;
        let heads = if base_head == 0 { ratio } else { head as f64 / base_head as f64 };
        WidthScaling { ratio, attention: 1.0 / heads.sqrt() }
    }

    /// Returns whether nothing is scaled.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Returns the initial values of hidden matrices, whose standard deviation falls with √width.
    #[must_use]
    pub fn matrices(self, init: Init) -> Init {
        let root = self.ratio.sqrt() as f32;
        match init {
            Init::Normal(deviation) => Init::Normal(deviation / root),
            Init::Uniform(bound) => Init::Uniform(bound / root),
            _ => init,
        }
    }

    /// Returns the factor of the scores of tokens.
    #[must_use]
    pub fn scores(self) -> f64 {
        1.0 / self.ratio
    }

    /// Returns the factor of attention scores; `scale` is the configured one, `None` for 1/√`head`.
    #[must_use]
    pub fn attention_scale(self, scale: Option<f32>, head: usize) -> Option<f32> {
        if self.attention == 1.0 {
            return scale;
        }
        let scale = scale.map_or_else(|| 1.0 / (head as f64).sqrt(), f64::from);
        Some((scale * self.attention) as f32)
    }

    /// Returns the factor of the learning rate of a parameter.
    #[must_use]
    pub fn rate(self, role: ParameterRole) -> f64 {
        match role {
            ParameterRole::Hidden | ParameterRole::Matrix => 1.0 / self.ratio,
            ParameterRole::Embedding | ParameterRole::Head | ParameterRole::Vector => 1.0,
        }
    }

    /// Returns the factor of the weight decay of a parameter. Rate times decay does not depend on the width.
    #[must_use]
    pub fn weight_decay(self, role: ParameterRole) -> f64 {
        1.0 / self.rate(role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_follow_the_width() {
        let four = WidthScaling::new([256, 64], [64, 0]);
        assert_eq!(four.matrices(Init::Normal(0.02)), Init::Normal(0.01));
        assert_eq!(four.scores(), 0.25);
        assert_eq!((four.rate(ParameterRole::Hidden), four.weight_decay(ParameterRole::Hidden)), (0.25, 4.0));
        for role in [ParameterRole::Embedding, ParameterRole::Head, ParameterRole::Vector] {
            assert_eq!((four.rate(role), four.weight_decay(role)), (1.0, 1.0));
        }
        // √16 / 64, and 1/√64 for heads as wide as the base's.
        assert_eq!(four.attention_scale(None, 64), Some(1.0 / 16.0));
        assert_eq!(four.attention_scale(Some(0.5), 64), Some(0.25));
        assert_eq!(WidthScaling::new([256, 64], [16, 16]).attention_scale(None, 16), None);
    }

    #[test]
    fn a_model_as_wide_as_its_base_is_not_scaled() {
        for scaling in [WidthScaling::new([96, 96], [24, 0]), WidthScaling::new([96, 0], [24, 0])] {
            assert!(scaling.is_none());
            assert_eq!(scaling.matrices(Init::Normal(0.02)), Init::Normal(0.02));
            assert_eq!((scaling.scores(), scaling.attention_scale(None, 24)), (1.0, None));
        }
    }
}
