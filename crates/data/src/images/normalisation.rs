//! Numbers by which a model's pixels are normalised.

/// The normalisation of pixels: value = (level / 255 − mean) / deviation, as torchvision's `Normalize`.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalisation {
    /// Mean that is subtracted, of each channel or of all.
    pub mean: Vec<f64>,
    /// Standard deviation that is divided by, as many.
    pub deviation: Vec<f64>,
}
