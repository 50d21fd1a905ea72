//! Images and their classes: CIFAR's binary files, and folders of JPEG and PNG files by class.
//!
//! A sample is a function of its number: the order, the crop, the flip and the mixture are drawn by counter,
//! so that samples are the same on every grid, for every size of micro-batches, and after a resume. Pixels
//! stay 8 bits a value: whoever computes with them normalises them.

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
