//! A two-dimensional convolution without a bias.

use autograd::ops::ConvolutionOptions;
use autograd::{Tape, Var, Weight, ops};
use nn::layers::{short, within};
use nn::{Init, Parameters, Result};

/// A convolution of channels-last images with weight `[outputs, kernel, kernel, inputs]`.
#[derive(Debug)]
pub struct Convolution {
    pub(super) name: String,
    pub(super) weight: Weight,
    pub(super) options: ConvolutionOptions,
}

/// Sizes of a [`Convolution`] with a square kernel. Padding keeps the image size at stride 1.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionSizes {
    /// Number of input channels.
    pub inputs: usize,
    /// Number of output channels.
    pub outputs: usize,
    /// Height and width of the kernel; odd.
    pub kernel: usize,
    /// Stride: distance between neighbouring windows.
    pub stride: usize,
}

impl Convolution {
    /// Registers `{name}.weight`, normal with variance 2 / (outputs · kernel²): He initialisation by the
    /// fan-out.
    ///
    /// # Errors
    /// Memory is exhausted, or the name exists.
    pub fn new(parameters: &mut Parameters, name: &str, sizes: ConvolutionSizes) -> Result<Self> {
        let ConvolutionSizes { inputs, outputs, kernel, stride } = sizes;
        let deviation = (2.0 / (outputs * kernel * kernel) as f32).sqrt();
        let shape = [outputs, kernel, kernel, inputs];
        let weight = parameters.create(&format!("{name}.weight"), shape, Init::Normal(deviation))?;
        let padding = [kernel / 2; 2];
        let options = ConvolutionOptions { stride: [stride; 2], padding, ..ConvolutionOptions::default() };
        Ok(Convolution { name: name.to_owned(), weight, options })
    }

    /// Maps `[batch, height, width, inputs]` to `[batch, height / stride, width / stride, outputs]`; sizes
    /// are rounded up.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub fn forward(&self, tape: &Tape, x_nhwc: Var) -> Result<Var> {
        within(tape, short(&self.name), || Ok(ops::convolution(tape, x_nhwc, &self.weight, self.options)?))
    }
}
