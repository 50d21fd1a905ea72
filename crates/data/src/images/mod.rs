//! Images and their classes: CIFAR's binary files, and folders of JPEG and PNG files by class.
//!
//! A sample is a function of its number: order, crop, flip and mixup are drawn with counter-based random
//! numbers. So samples are the same on every grid, for every micro-batch size, and after a resume. Pixels
//! stay 8-bit values; the device normalises them.

mod augment;
mod cifar;
mod decode;
mod folders;
mod mixup;
mod normalisation;
mod options;
pub(crate) mod pattern;
mod picture;
mod resize;
mod set;
mod source;
mod split;

pub use mixup::SHARES;
pub use normalisation::Normalisation;
pub use options::{Crop, ImageOptions};
pub use source::ImageSource;
pub use split::ImageSplit;
