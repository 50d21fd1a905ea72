//! Channels that are padded with zeros on a GPU: cuDNN's kernels for half types take multiples of 8, and the
//! library is several times slower where it pads by itself, as for the three channels of an image.
//!
//! Gradients of weights in f32 take the same way, since cuDNN writes them in the operands' type.

use device::{Backend, Category, ConvolutionShape, DType, Device, Family, Function, Request};

use crate::ops::kernels::family;
use crate::ops::{GradientTarget, check, gpu};
use crate::{Result, Tensor};

/// Number of channels of which cuDNN's kernels for half types need a multiple.
pub(super) const MULTIPLE: usize = 8;

/// `kernels/channels.cu`.
pub(crate) static FAMILY: Family =
    family!("channels", constants: &[gpu::THREADS_CONSTANT, ("WIDE", MULTIPLE as u32)]);

/// Returns the convolution with as many channels of the input as the library's kernels need.
pub(super) fn padded(device: &Device, dtype: DType, shape: &ConvolutionShape) -> ConvolutionShape {
    let mut padded = *shape;
    if device.is_cuda_like() && dtype != DType::F32 && shape.groups == 1 {
        padded.input[2] = shape.input[2].next_multiple_of(MULTIPLE);
    }
    padded
}

/// Returns `x` with zeros after its channels, `channels` in all; `x` itself if it has as many. Errors: out of
/// memory.
pub(super) fn pad(operator: &'static str, x: &Tensor, channels: usize) -> Result<Tensor> {
    let own = x.shape().columns();
    if own == channels {
        return Ok(x.clone());
    }
    let padded = empty(operator, x, x.dtype(), channels)?;
    if x.device().backend() == Backend::Cuda {
        let kernel = Function::new(&FAMILY, "pad").of(x.dtype());
        let launch = x.device().kernel(kernel).read(x.region()).write(padded.region());
        let count = gpu::word(operator, padded.elements() / MULTIPLE)?;
        let launch = launch.u32(gpu::word(operator, own)?).u32(gpu::word(operator, channels)?).u32(count);
        let blocks = [count.div_ceil(gpu::THREADS), 1, 1];
        launch.cost(gpu::bytes(&[x, &padded]), 0).launch(blocks, gpu::THREADS)?;
    }
    Ok(padded)
}

/// target (+)= the first channels of `padded`, as many as it has; rounded once.
pub(super) fn unpad(operator: &'static str, padded: &Tensor, target: &GradientTarget) -> Result<()> {
    let GradientTarget { tensor: out, accumulate } = target;
    if out.device().backend() != Backend::Cuda {
        return Ok(());
    }
    let [own, channels] = [out.shape().columns(), padded.shape().columns()];
    let count = gpu::word(operator, out.elements())?;
    let kernel = Function::new(&FAMILY, "unpad").from_to(padded.dtype(), out.dtype());
    let launch = out.device().kernel(kernel).read(padded.region()).write(out.region());
    let launch = launch.u32(gpu::word(operator, own)?).u32(gpu::word(operator, channels)?).u32(count);
    let launch = launch.u32(u32::from(*accumulate)).cost(gpu::bytes(&[padded, out]), u64::from(count));
    Ok(launch.launch([count.div_ceil(gpu::THREADS), 1, 1], gpu::THREADS)?)
}

/// Allocates an array of the shape of `like` with another number of channels. Errors: out of memory.
pub(super) fn empty(operator: &'static str, like: &Tensor, dtype: DType, channels: usize) -> Result<Tensor> {
    let shape = check::with_columns(like.shape(), channels);
    Tensor::empty(like.device(), shape, dtype, Request::new(Category::Workspace, operator))
}
