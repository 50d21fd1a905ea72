//! Convolutions on a GPU, by cuDNN.

use device::{Backend, Convolution, ConvolutionPass, ConvolutionShape};

use crate::{Result, Tensor};

/// The arrays of a pass, or their gradients.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) x: &'a Tensor,
    pub(super) weight: &'a Tensor,
    pub(super) y: &'a Tensor,
    pub(super) workspace: &'a Tensor,
}

impl Operands<'_> {
    /// Computes a pass; nothing on a device that only counts.
    pub(super) fn run(self, shape: ConvolutionShape, pass: ConvolutionPass, accumulate: bool) -> Result<()> {
        let Operands { x, weight, y, workspace } = self;
        if x.device().backend() == Backend::Meta {
            return Ok(());
        }
        let (input, weight, output) = (x.region(), weight.region(), y.region());
        let (dtype, workspace) = (x.dtype(), workspace.region());
        let call = Convolution { shape, pass, dtype, input, weight, output, workspace, accumulate };
        Ok(x.device().convolve(&call)?)
    }
}
