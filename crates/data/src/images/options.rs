//! Options of image sources.

system::names! {
    /// How training images are cropped.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Crop {
        /// [`Crop::Padded`] if images have the model's size, otherwise [`Crop::Resized`].
        Auto = "auto",
        /// A random window of the model's size in the image with a black border of `crop_padding` pixels.
        /// Images of another size are first scaled and cropped to the centre.
        Padded = "padded",
        /// A random rectangle of 8 % to 100 % of the area and an aspect ratio from 3:4 to 4:3, scaled to the
        /// model's size, as torchvision's `RandomResizedCrop`.
        Resized = "resized",
        /// The centre, as in validation.
        Center = "center",
    }
}

/// Options of an image source.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageOptions {
    /// Channels the model takes: 3 (red, green, blue) or 1 (luminance).
    pub channels: usize,
    /// Height and width the model takes, in pixels.
    pub size: usize,
    /// Number of classes the model distinguishes.
    pub classes: usize,
    /// Images per micro-batch.
    pub micro_batch: usize,
    /// Seed for order, crops, flips and mixup.
    pub seed: u64,
    /// Number of validation micro-batches. Rows beyond the held-out images have ignored targets.
    pub validation_micro_batches: u64,
    /// How training images are cropped.
    pub crop: Crop,
    /// Width in pixels of the border of [`Crop::Padded`].
    pub crop_padding: usize,
    /// Whether half of the training samples are mirrored.
    pub flip: bool,
    /// Mean to subtract from each channel, for values from 0 to 1.
    pub mean: Vec<f64>,
    /// Standard deviation to divide each channel by, for values from 0 to 1.
    pub deviation: Vec<f64>,
    /// Whether an image that cannot be decoded is replaced by the next one, instead of being an error.
    pub skip_invalid: bool,
    /// α of mixup's Beta(α, α) distribution; 0: no mixup.
    pub mixup: f64,
}
