//! Convolutions on a GPU, by cuDNN, and launches of `kernels/convolution.cu`.

use device::{Backend, Convolution, ConvolutionPass, ConvolutionShape, Family, Function};

use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

/// Unfolded windows are padded to a multiple of this many elements: 16 bytes of a half type.
pub(super) const WIDE: usize = 8;

pub(crate) static FAMILY: Family =
    family!("convolution", constants: &[gpu::THREADS_CONSTANT, ("WIDE", WIDE as u32)]);

/// The arrays of a forward or backward pass, or their gradients.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) x_nhwc: &'a Tensor,
    pub(super) weight_ohwi: &'a Tensor,
    pub(super) y_nhwc: &'a Tensor,
    pub(super) workspace: &'a Tensor,
}

impl Operands<'_> {
    /// Runs a pass in cuDNN; does nothing on Meta.
    pub(super) fn run(self, shape: ConvolutionShape, pass: ConvolutionPass, accumulate: bool) -> Result<()> {
        let Operands { x_nhwc, weight_ohwi, y_nhwc, workspace } = self;
        if x_nhwc.device().backend() == Backend::Meta {
            return Ok(());
        }
        let input = x_nhwc.region();
        let weight = weight_ohwi.region();
        let output = y_nhwc.region();
        let dtype = x_nhwc.dtype();
        let workspace = workspace.region();
        let call = Convolution { shape, pass, dtype, input, weight, output, workspace, accumulate };
        Ok(x_nhwc.device().convolve(&call)?)
    }
}

/// Adds the first `own` of every `columns` elements of `padded` to the target, or overwrites the target with
/// them; rounds once. Does nothing on Meta.
pub(super) fn unpad(
    operator: &'static str,
    padded: &Tensor,
    columns: usize,
    target: &GradientTarget,
    own: usize,
) -> Result<()> {
    let GradientTarget { tensor: out, accumulate } = target;
    if out.device().backend() == Backend::Meta {
        return Ok(());
    }
    let count = gpu::word(operator, out.elements())?;
    let kernel = Function::new(&FAMILY, "unpad").from_to(padded.dtype(), out.dtype());
    let launch = out.device().kernel(kernel).read(padded).write(out);
    let launch = launch.u32(gpu::word(operator, own)?).u32(gpu::word(operator, columns)?).u32(count);
    let moved = gpu::bytes(&[padded]) + target.moved();
    let launch = launch.u32(u32::from(*accumulate)).cost(moved, u64::from(count));
    Ok(launch.launch([count.div_ceil(gpu::THREADS), 1, 1], gpu::THREADS)?)
}
