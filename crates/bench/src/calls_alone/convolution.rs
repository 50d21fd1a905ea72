//! Operands of convolutions that are timed alone.

use device::{Category, ConvolutionPass, ConvolutionShape, DType, Device, Request};
use tensor::Tensor;
use tensor::ops::convolution::{self, ConvolutionOptions};
use tensor::ops::{GradientTarget, random};

use crate::error::Result;

/// Maximum number of sets of operands.
const MOST_SETS: usize = 8;

/// A pass of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvolutionCase {
    pub(super) shape: ConvolutionShape,
    pub(super) pass: ConvolutionPass,
    pub(super) dtype: DType,
}

/// Random operands of a convolution.
pub(super) struct ConvolutionOperands {
    x_nhwc: Tensor,
    dy_nhwc: Tensor,
    weight_ohwi: GradientTarget,
}

impl ConvolutionOperands {
    /// Returns sets of operands, between which calls rotate: of at least `bytes` bytes, or as many as are
    /// useful.
    pub(super) fn sets(device: &Device, case: &ConvolutionCase, bytes: usize) -> Result<Vec<Self>> {
        let own: usize = case.shape.elements().iter().map(|count| count * case.dtype.bytes()).sum();
        (0..bytes.div_ceil(own.max(1)).clamp(1, MOST_SETS)).map(|_| Self::new(device, case)).collect()
    }

    fn new(device: &Device, case: &ConvolutionCase) -> Result<Self> {
        let ConvolutionShape { batch, input, output, kernel, groups, .. } = case.shape;
        let random = |name: &str, shape: [usize; 4]| -> Result<Tensor> {
            let request = Request::new(Category::Other, "convolution");
            let operand = Tensor::empty(device, shape, case.dtype, request)?;
            random::normal(&operand, 1, name, 0.0, 1.0)?;
            Ok(operand)
        };
        let weight = [output[2], kernel[0], kernel[1], input[2] / groups];
        Ok(ConvolutionOperands {
            x_nhwc: random("x", [batch, input[0], input[1], input[2]])?,
            dy_nhwc: random("dy", [batch, output[0], output[1], output[2]])?,
            weight_ohwi: GradientTarget { tensor: random("weight", weight)?, accumulate: false },
        })
    }

    /// Calls the pass.
    pub(super) fn call(&self, case: &ConvolutionCase) -> Result<()> {
        let ConvolutionOperands { x_nhwc, dy_nhwc, weight_ohwi } = self;
        let ConvolutionShape { input, stride, padding, dilation, groups, .. } = case.shape;
        let options = ConvolutionOptions { stride, padding, dilation, groups };
        let weight = &weight_ohwi.tensor;
        match case.pass {
            ConvolutionPass::Forward => drop(convolution::forward(x_nhwc, weight, &options)?),
            ConvolutionPass::BackwardInput => {
                drop(convolution::backward_input(dy_nhwc, weight, [input[0], input[1]], &options)?);
            }
            ConvolutionPass::BackwardWeight => {
                convolution::backward_weight(dy_nhwc, x_nhwc, weight_ohwi, &options)?;
            }
        }
        Ok(())
    }
}
