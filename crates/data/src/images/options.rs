//! Options of a source of images.

system::names! {
    /// The part of a training image that a sample shows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Crop {
        /// [`Crop::Padded`] for images of the model's size, [`Crop::Resized`] for others.
        Auto = "auto",
        /// A window of the model's size in the image with a black border of `crop_padding` pixels. An image
        /// of another size is scaled and cut in its centre first.
        Padded = "padded",
        /// A rectangle of 8 % to 100 % of the area and a ratio of sides from 3:4 to 4:3, scaled to the
        /// model's size, as torchvision's `RandomResizedCrop`.
        Resized = "resized",
        /// The centre, as in validation.
        Center = "center",
    }
}

/// Options of a source of images.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageOptions {
    /// Values of a pixel that the model takes: 3 (red, green, blue) or 1 (luminance).
    pub channels: usize,
    /// Height and width that the model takes.
    pub size: usize,
    /// Classes that the model tells apart.
    pub classes: usize,
    /// Images in a micro-batch.
    pub micro_batch: usize,
    /// Seed of order, crops, flips and mixtures.
    pub seed: u64,
    /// Number of validation micro-batches. Those beyond the held-out images have ignored targets.
    pub validation_micro_batches: u64,
    /// The part of a training image that a sample shows.
    pub crop: Crop,
    /// Pixels of the border of [`Crop::Padded`].
    pub crop_padding: usize,
    /// Whether half of the training samples are mirrored.
    pub flip: bool,
    /// Mean of each channel, of values from 0 to 1, that is subtracted.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel, of values from 0 to 1, that is divided by.
    pub deviation: Vec<f64>,
    /// Whether an image that cannot be decoded is replaced by the next one, and not refused.
    pub skip_invalid: bool,
    /// α of the Beta(α, α) distribution from which mixtures are drawn; 0: samples are not mixed.
    pub mixup: f64,
}
