//! The keys of `[precision.scaler]`.

use device::DType;
use keys::{Interval, Row, section};

use super::precision::Precision;

/// The values of `precision.compute` that use a loss scale.
const SCALED: &[&str] = &[DType::F16.name()];

section! {
    /// `[precision.scaler]`: the dynamic loss scale for f16, adapted as by PyTorch's `GradScaler`.
    pub struct Scaler = "precision.scaler" {
        /// The initial scale.
        init_scale: f64 = Row::number(Interval::Positive).default("65536").only(Precision::compute, SCALED);
        /// The factor that multiplies the scale after `growth_interval` consecutive steps with finite
        /// gradients.
        growth_factor: f64 = Row::number(Interval::Positive).default("2").only(Precision::compute, SCALED);
        /// The factor that multiplies the scale after a step with an infinite or NaN gradient, whose update
        /// is skipped.
        backoff_factor: f64 = Row::number(Interval::Positive).default("0.5").only(Precision::compute, SCALED);
        /// Number of consecutive steps with finite gradients after which the scale grows.
        growth_interval: u64 = Row::integer(1, u32::MAX as u64).default("2000")
            .only(Precision::compute, SCALED);
    }
}
