//! The keys of `[preference]`.

use keys::{Interval, Row, choice, section};

use super::data::Data;
use crate::choices::{DataKind, PreferenceLoss};

/// The data kind of preference pairs.
const PAIRS: &[&str] = &[DataKind::Preference.name()];

section! {
    /// `[preference]`: the loss function for preference pairs.
    pub struct Preference = "preference" {
        /// DPO: a logistic loss of how much more than the initial model the model prefers the chosen answer.
        /// IPO: a squared loss of means over tokens, which stays bounded. ORPO: the cross-entropy of prompts
        /// and chosen answers plus a logistic loss of odds, without a reference model.
        loss: PreferenceLoss = choice!(PreferenceLoss, PreferenceLoss::ALL)
            .default("\"dpo\"").only(Data::kind, PAIRS);
        /// β of DPO and IPO: a larger value keeps the model closer to the initial one.
        beta: f64 = Row::number(Interval::Positive).default("0.1").only(Data::kind, PAIRS);
        /// The probability, assumed by DPO, that a preference label is wrong (conservative DPO); 0: labels
        /// are exact.
        label_smoothing: f64 = Row::number(Interval::Fraction).default("0").only(Data::kind, PAIRS);
        /// λ of ORPO: the factor of the odds loss, which is added to the cross-entropy.
        lambda: f64 = Row::number(Interval::Positive).default("0.1").only(Data::kind, PAIRS);
    }
}

impl Preference {
    pub(crate) const DEFAULT_FACTOR: f64 = 0.1;
}
