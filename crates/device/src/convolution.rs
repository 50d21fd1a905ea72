//! Description of a convolution, as operators request it from a GPU.

use crate::buffer::Region;
use crate::dtype::DType;
use crate::error::{DeviceError, Result};
use crate::work::Work;

/// Sizes of a two-dimensional convolution over channels-last arrays. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionShape {
    /// Number of images.
    pub batch: usize,
    /// Height, width and channels of an input image.
    pub input: [usize; 3],
    /// Height, width and channels of an output image.
    pub output: [usize; 3],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance between neighbouring windows.
    pub stride: [usize; 2],
    /// Rows and columns of zeros on each side of the input.
    pub padding: [usize; 2],
    /// Distance between neighbouring elements of a window.
    pub dilation: [usize; 2],
    /// Number of groups of channels that are convolved separately.
    pub groups: usize,
}

impl ConvolutionShape {
    /// Returns the elements of the input, of the output, and of the weight `[out, height, width, in /
    /// groups]`.
    #[must_use]
    pub fn elements(&self) -> [usize; 3] {
        let image = |sizes: [usize; 3]| self.batch * sizes.iter().product::<usize>();
        let [weight_rows, columns] = [self.output[2], self.window()];
        [image(self.input), image(self.output), weight_rows * columns]
    }

    /// Returns the elements of one group's window: height · width · input channels of the group.
    #[must_use]
    pub fn window(&self) -> usize {
        self.kernel[0] * self.kernel[1] * (self.input[2] / self.groups.max(1))
    }

    /// Returns the FLOPs of each pass: two for each output element and element of its window.
    #[must_use]
    pub fn flops(&self) -> u64 {
        Work::flops_of_products([self.elements()[1], self.window()])
    }
}

/// The passes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionPass {
    /// Computes the output from input and weight.
    Forward,
    /// Computes the input's gradient from the output's gradient and the weight.
    BackwardInput,
    /// Computes the weight's gradient from the output's gradient and the input.
    BackwardWeight,
}

/// One pass of a convolution. All arrays are dense, of one floating-point type, and channels-last.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// Sizes of the convolution.
    pub shape: ConvolutionShape,
    /// Forward, or one of the backward passes.
    pub pass: ConvolutionPass,
    /// Type of all elements.
    pub dtype: DType,
    /// The input or its gradient, `[batch, height, width, in]`.
    pub input: Region<'a>,
    /// The weight or its gradient, `[out, height, width, in / groups]`.
    pub weight: Region<'a>,
    /// The output or its gradient, `[batch, height, width, out]`.
    pub output: Region<'a>,
    /// Memory that cuDNN may use.
    pub workspace: Region<'a>,
    /// Whether the result is added to the previous values; otherwise it overwrites them.
    pub accumulate: bool,
}

/// Operations applied to the result of a forward pass: relu(result + bias + residual).
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionEpilogue<'a> {
    /// One element per output channel, of the operands' type.
    pub bias: Region<'a>,
    /// An array of the output's shape and type.
    pub residual: Option<Region<'a>>,
    /// Whether negative values are replaced by 0.
    pub relu: bool,
}

impl ConvolutionEpilogue<'_> {
    pub(crate) fn bytes(&self) -> u64 {
        (self.bias.bytes + self.residual.map_or(0, |residual| residual.bytes)) as u64
    }

    /// Checks that every region lies in its buffer and has the size that `call` needs.
    pub(crate) fn check(&self, call: &Convolution<'_>) -> Result<()> {
        let bias = (self.bias, call.shape.output[2] * call.dtype.bytes());
        let residual = self.residual.map(|residual| (residual, call.output.bytes));
        for (region, bytes) in std::iter::once(bias).chain(residual) {
            region.checked_address()?;
            if region.bytes != bytes {
                let left = region.bytes;
                let right = bytes;
                return Err(DeviceError::Length { operator: "convolution", left, right });
            }
        }
        Ok(())
    }
}

impl Convolution<'_> {
    /// Returns the minimum work of the pass: each array moved once, and a result that is added to twice.
    pub(crate) fn work(&self) -> Work {
        let result = match self.pass {
            ConvolutionPass::Forward => self.output,
            ConvolutionPass::BackwardInput => self.input,
            ConvolutionPass::BackwardWeight => self.weight,
        };
        let added = if self.accumulate { result.bytes } else { 0 };
        let bytes = self.input.bytes + self.weight.bytes + self.output.bytes + added;
        Work { bytes: bytes as u64, flops: self.shape.flops() }
    }

    /// Checks that every region lies in its buffer and has the size that the shape needs.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.dtype.is_float() {
            return Err(DeviceError::Unsupported { call: "convolution", dtype: self.dtype });
        }
        let [input, output, weight] = self.shape.elements();
        self.workspace.checked_address()?;
        for (region, elements) in [(self.input, input), (self.output, output), (self.weight, weight)] {
            region.checked_address()?;
            let bytes = elements * self.dtype.bytes();
            if region.bytes != bytes {
                let left = region.bytes;
                let right = bytes;
                return Err(DeviceError::Length { operator: "convolution", left, right });
            }
        }
        Ok(())
    }
}
