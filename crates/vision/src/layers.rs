//! Layers for images in channels-last format: `[batch, height, width, channels]`.

mod batch_norm;
mod convolution;
mod normed_convolution;
mod residual_block;

pub use batch_norm::BatchNorm;
pub use convolution::{Convolution, ConvolutionSizes};
pub use normed_convolution::NormedConvolution;
pub use residual_block::{ResidualBlock, ResidualBlockSizes};
