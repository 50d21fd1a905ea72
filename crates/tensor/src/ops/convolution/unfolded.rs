//! Convolutions of few input channels on a GPU, such as an image's three. Windows are unfolded into rows and
//! multiplied with the weight, because cuDNN takes several times as long. Gradients of weights are summed in
//! f32.

use device::{Backend, Category, ConvolutionShape, DType, Device, Function, Request};

use super::biased::Biased;
use super::cuda::{FAMILY, WIDE, unpad};
use crate::ops::linear::Ending;
use crate::ops::{GradientTarget, gpu, linear};
use crate::{Result, Tensor};

/// Minimum number of channels for which cuDNN has kernels in half types.
const CHANNELS: usize = 8;
/// Maximum bytes of unfolded windows, unless one image needs more.
const WINDOWS_BYTES: usize = 256 << 20;

/// A convolution that runs as an unfolding and a matmul.
pub(super) struct Unfolded {
    operator: &'static str,
    shape: ConvolutionShape,
    /// Elements of a window, padded with zeros at its end.
    columns: usize,
    images: usize,
}

impl Unfolded {
    /// Returns the plan of an unfolded convolution; `None` unless the device is a GPU, the type a half type,
    /// and the channels few.
    pub(super) fn plan(
        operator: &'static str,
        device: &Device,
        dtype: DType,
        shape: &ConvolutionShape,
    ) -> Option<Self> {
        let few = shape.groups == 1 && shape.dilation == [1, 1] && shape.input[2] < CHANNELS;
        let columns = shape.window().next_multiple_of(WIDE);
        let image = dtype.bytes() * shape.output[0] * shape.output[1] * columns;
        let images = (WINDOWS_BYTES / image.max(1)).clamp(1, shape.batch.max(1));
        let applies = device.is_cuda_like() && dtype != DType::F32 && few;
        applies.then_some(Unfolded { operator, shape: *shape, columns, images })
    }

    /// Computes out = conv(x, weight), then the bias and the operations after it, if any.
    pub(super) fn forward(
        &self,
        x_nhwc: &Tensor,
        weight_ohwi: &Tensor,
        biased: Option<Biased<'_>>,
        out: &Tensor,
    ) -> Result<()> {
        let outputs = self.shape.output[2];
        let padded = self.empty(weight_ohwi, [outputs, self.columns], weight_ohwi.dtype())?;
        let windows = self.windows(x_nhwc)?;
        if x_nhwc.device().backend() != Backend::Cuda {
            return Ok(());
        }
        let kernel = Function::new(&FAMILY, "pad").with_dtype(weight_ohwi.dtype());
        let launch = x_nhwc.device().kernel(kernel).read(weight_ohwi).write(&padded);
        let launch = launch.u32(self.word(self.shape.window())?).u32(self.word(self.columns)?);
        self.launch(launch, padded.elements(), gpu::bytes(&[weight_ohwi, &padded]))?;
        self.pieces(x_nhwc, &windows, |windows, positions| {
            let part = |whole: &Tensor| whole.view(positions.start * outputs, [positions.len(), outputs]);
            let out = part(out)?;
            let Some(Biased { bias, ending }) = biased else {
                return linear::cuda::affine(windows, &padded, None, false, &out);
            };
            let residual = ending.residual().map(part).transpose()?;
            let ending = residual.as_ref().map_or(ending, Ending::ResidualRelu);
            linear::affine_ended(windows, &padded, bias, ending, &out)
        })
    }

    /// Adds the gradient of the weight to its target, or overwrites it.
    pub(super) fn backward_weight(
        &self,
        dy_nhwc: &Tensor,
        x_nhwc: &Tensor,
        weight_ohwi: &GradientTarget,
    ) -> Result<()> {
        let outputs = self.shape.output[2];
        let sum = self.empty(x_nhwc, [outputs, self.columns], DType::F32)?;
        let windows = self.windows(x_nhwc)?;
        if x_nhwc.device().backend() != Backend::Cuda {
            return Ok(());
        }
        self.pieces(x_nhwc, &windows, |windows, positions| {
            let accumulate = positions.start > 0;
            let dy_nhwc = dy_nhwc.view(positions.start * outputs, [positions.len(), outputs])?;
            linear::cuda::backward_weight(
                &dy_nhwc,
                windows,
                &GradientTarget { tensor: sum.clone(), accumulate },
                None,
            )
        })?;
        unpad(self.operator, &sum, self.columns, weight_ohwi, self.shape.window())
    }

    /// Unfolds some images at a time. Calls `multiply` with their windows and with the range of their output
    /// positions.
    fn pieces(
        &self,
        x_nhwc: &Tensor,
        windows: &Tensor,
        multiply: impl Fn(&Tensor, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let ConvolutionShape { batch, input, output, kernel, stride, padding, .. } = self.shape;
        let image = input.iter().product::<usize>();
        let positions = output[0] * output[1];
        for first in (0..batch).step_by(self.images) {
            let images = self.images.min(batch - first);
            let x_nhwc = x_nhwc.view(first * image, [images * image])?;
            let windows = windows.view(0, [images * positions, self.columns])?;
            let unfold = Function::new(&FAMILY, "unfold").with_dtype(x_nhwc.dtype());
            let mut launch = x_nhwc.device().kernel(unfold).read(&x_nhwc).write(&windows);
            let sizes = [
                input.as_slice(),
                &output[..2],
                &kernel[..],
                &stride[..],
                &padding[..],
                &[self.columns / WIDE],
            ];
            for size in sizes.into_iter().flatten() {
                launch = launch.u32(self.word(*size)?);
            }
            self.launch(launch, windows.elements() / WIDE, gpu::bytes(&[&x_nhwc, &windows]))?;
            multiply(&windows, first * positions..(first + images) * positions)?;
        }
        Ok(())
    }

    fn launch(&self, launch: device::cuda::Launch<'_>, threads: usize, moved: u64) -> Result<()> {
        let threads = self.word(threads)?;
        let blocks = [threads.div_ceil(gpu::THREADS), 1, 1];
        Ok(launch.u32(threads).cost(moved, 0).launch(blocks, gpu::THREADS)?)
    }

    fn windows(&self, x_nhwc: &Tensor) -> Result<Tensor> {
        let positions = self.images * self.shape.output[0] * self.shape.output[1];
        self.empty(x_nhwc, [positions, self.columns], x_nhwc.dtype())
    }

    fn empty(&self, like: &Tensor, sizes: [usize; 2], dtype: DType) -> Result<Tensor> {
        Tensor::empty(like.device(), sizes, dtype, Request::new(Category::Workspace, self.operator))
    }

    fn word(&self, size: usize) -> Result<u32> {
        gpu::word(self.operator, size)
    }
}
