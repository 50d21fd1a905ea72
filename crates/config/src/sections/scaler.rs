//! The keys of `[precision.scaler]`.

use device::DType;
use keys::{Interval, Row, section};

use super::precision::Precision;

/// The values of `precision.compute` that have a loss scale.
const SCALED: &[&str] = &[DType::F16.name()];

section! {
    /// `[precision.scaler]`: the factor of the loss whose gradients are in f16, as PyTorch's `GradScaler`
    /// adapts it.
    pub struct Scaler = "precision.scaler" {
        /// The first factor of the loss.
        init_scale: f64 = Row::number(Interval::Positive).default("65536").only(Precision::compute, SCALED);
        /// The factor of the scale after `growth_interval` steps in a row with finite gradients.
        growth_factor: f64 = Row::number(Interval::Positive).default("2").only(Precision::compute, SCALED);
        /// The factor of the scale after a step with an infinity or NaN in a gradient, which is skipped.
        backoff_factor: f64 = Row::number(Interval::Positive).default("0.5").only(Precision::compute, SCALED);
        /// The number of steps after which the scale grows.
        growth_interval: u64 = Row::integer(1, u32::MAX as u64).default("2000")
            .only(Precision::compute, SCALED);
    }
}
