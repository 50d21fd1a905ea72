//! Parameters for normalising pixels.

/// Normalisation of pixels: value = (level / 255 − mean) / deviation, as torchvision's `Normalize`.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalisation {
    /// Mean to subtract: one for each channel, or one for all.
    pub mean: Vec<f64>,
    /// Standard deviation to divide by: one for each channel, or one for all.
    pub deviation: Vec<f64>,
}
