//! The keys of `[preference]`.

use keys::{Interval, Row, choice, section};

use super::data::Data;
use crate::choices::{DataKind, PreferenceLoss};

/// The kind of data that is pairs of answers.
const PAIRS: &[&str] = &[DataKind::Preference.name()];

section! {
    /// `[preference]`: how pairs of answers are learnt.
    pub struct Preference = "preference" {
        /// DPO: a logistic loss of how much more the model prefers the chosen answer than the model did from
        /// which the run starts; IPO: a squared one of means over tokens, which does not grow without end;
        /// ORPO: the cross-entropy of prompts and chosen answers with a logistic loss of odds, without a
        /// reference.
        loss: PreferenceLoss = choice!(PreferenceLoss, PreferenceLoss::ALL)
            .default("\"dpo\"").only(Data::kind, PAIRS);
        /// β of DPO and IPO: the larger, the nearer the model stays to the one from which the run starts.
        beta: f64 = Row::number(Interval::Positive).default("0.1").only(Data::kind, PAIRS);
        /// The probability with which DPO takes a preference to be the wrong way round (conservative DPO); 0:
        /// none is.
        label_smoothing: f64 = Row::number(Interval::Fraction).default("0").only(Data::kind, PAIRS);
        /// λ of ORPO: the factor of the loss of odds, beside the cross-entropy.
        lambda: f64 = Row::number(Interval::Positive).default("0.1").only(Data::kind, PAIRS);
    }
}

impl Preference {
    pub(crate) const DEFAULT_FACTOR: f64 = 0.1;
}
