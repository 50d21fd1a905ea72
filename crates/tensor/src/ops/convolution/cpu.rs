//! Convolutions on the host: windows are unfolded into rows, a few images at a time, and multiplied with the
//! weight.
//!
//! Sums are in f32, and results of half types are rounded once.

use device::parallel::for_pieces;
use device::{ConvolutionShape, MatrixRef, gemm};

use super::biased::Biased;
use super::workspace::images_at_once;
use crate::ops::GradientTarget;
use crate::ops::activation::{Elementary, Relu};
use crate::ops::rows;
use crate::{Result, Tensor};

/// Sizes of a call, in elements, images and channels.
struct CallSizes {
    /// Elements of an input image.
    image: usize,
    output: usize,
    /// Number of images that are unfolded at once.
    images: usize,
    /// Number of output channels.
    channels: usize,
    outputs: usize,
    /// Elements of a window within one group of channels.
    window: usize,
}

impl CallSizes {
    fn from_shape(shape: &ConvolutionShape) -> Self {
        let channels = shape.output[2];
        CallSizes {
            image: shape.input.iter().product(),
            output: shape.output.iter().product(),
            images: images_at_once(shape),
            channels,
            outputs: channels / shape.groups,
            window: shape.window(),
        }
    }

    /// Returns the weight of a group, `[outputs, window]`.
    fn weight<'a>(&self, weight: &'a [f32], group: usize) -> MatrixRef<'a> {
        let elements = self.outputs * self.window;
        MatrixRef::new(&weight[group * elements..][..elements], self.outputs, self.window, self.window)
    }

    /// Returns a group's channels of the output or of its gradient, `[rows, outputs]`.
    fn output<'a>(&self, values: &'a [f32], group: usize) -> MatrixRef<'a> {
        let rows = values.len() / self.channels;
        MatrixRef::new(&values[group * self.outputs..], rows, self.outputs, self.channels)
    }
}

/// Computes out = conv(x, weight), then the bias and the operations after it, if any.
pub(super) fn forward(
    shape: &ConvolutionShape,
    x: &Tensor,
    weight: &Tensor,
    biased: Option<Biased<'_>>,
    out: &Tensor,
    workspace: &Tensor,
) -> Result<()> {
    let sizes = CallSizes::from_shape(shape);
    let residual = biased.and_then(|biased| biased.ending.residual());
    if let Some(residual) = residual {
        out.copy_from(residual)?;
    }
    let x = x.values()?;
    let weight = weight.values()?;
    let mut workspace = workspace.write::<f32>()?;
    let mut out = out.values_mut()?;
    let outputs = out.chunks_mut(sizes.images * sizes.output);
    for (x, out) in x.chunks(sizes.images * sizes.image).zip(outputs) {
        let rows = out.len() / sizes.channels;
        for group in 0..shape.groups {
            let windows = &mut workspace[..rows * sizes.window];
            unfold(shape, group, x, windows);
            let left = MatrixRef::new(windows, rows, sizes.window, sizes.window);
            let right = sizes.weight(&weight, group).transposed();
            let out = &mut out[group * sizes.outputs..];
            gemm(left, right, out, sizes.channels, 1.0, residual.is_some());
        }
    }
    biased.map_or(Ok(()), |biased| finish(biased, &mut out))
}

/// Computes values = ending(values + bias). A residual has been added already.
fn finish(Biased { bias, ending }: Biased<'_>, values: &mut [f32]) -> Result<()> {
    let bias = bias.values()?;
    let bias: &[f32] = &bias;
    let has_relu: bool = ending.has_relu();
    for_pieces(values, rows::per_task(bias.len()) * bias.len(), |_, values| {
        for row in values.chunks_mut(bias.len()) {
            match has_relu {
                true => row.iter_mut().zip(bias).for_each(|(y, b)| *y = Relu::value(*y + b)),
                false => row.iter_mut().zip(bias).for_each(|(y, b)| *y += b),
            }
        }
    });
    Ok(())
}

/// Computes the gradient of the input.
pub(super) fn backward_input(
    shape: &ConvolutionShape,
    dy: &Tensor,
    weight: &Tensor,
    dx: &Tensor,
    workspace: &Tensor,
) -> Result<()> {
    let sizes = CallSizes::from_shape(shape);
    let dy = dy.values()?;
    let weight = weight.values()?;
    let mut workspace = workspace.write::<f32>()?;
    let mut dx = dx.values_mut()?;
    let inputs = dx.chunks_mut(sizes.images * sizes.image);
    for (dy, dx) in dy.chunks(sizes.images * sizes.output).zip(inputs) {
        let rows = dy.len() / sizes.channels;
        for group in 0..shape.groups {
            let windows = &mut workspace[..rows * sizes.window];
            gemm(sizes.output(dy, group), sizes.weight(&weight, group), windows, sizes.window, 1.0, false);
            fold(shape, group, windows, dx);
        }
    }
    Ok(())
}

/// Adds the gradient of the weight to its target, or overwrites it.
pub(super) fn backward_weight(
    shape: &ConvolutionShape,
    dy: &Tensor,
    x: &Tensor,
    weight: &GradientTarget,
    workspace: &Tensor,
) -> Result<()> {
    let sizes = CallSizes::from_shape(shape);
    let dy = dy.values()?;
    let x = x.values()?;
    let mut workspace = workspace.write::<f32>()?;
    let mut sum = weight.tensor.values_mut()?;
    let pieces = x.chunks(sizes.images * sizes.image).zip(dy.chunks(sizes.images * sizes.output));
    for (piece, (x, dy)) in pieces.enumerate() {
        let rows = dy.len() / sizes.channels;
        for group in 0..shape.groups {
            let windows = &mut workspace[..rows * sizes.window];
            unfold(shape, group, x, windows);
            let right = MatrixRef::new(windows, rows, sizes.window, sizes.window);
            let elements = sizes.outputs * sizes.window;
            let sum = &mut sum[group * elements..][..elements];
            let adds = weight.accumulate || piece > 0;
            gemm(sizes.output(dy, group).transposed(), right, sum, sizes.window, 1.0, adds);
        }
    }
    Ok(())
}

/// Returns the input row or column that element `kernel` of window `position` reads; `None` for padding.
#[inline(always)]
fn source(shape: &ConvolutionShape, axis: usize, position: usize, kernel: usize) -> Option<usize> {
    let padded = position * shape.stride[axis] + kernel * shape.dilation[axis];
    padded.checked_sub(shape.padding[axis]).filter(|at| *at < shape.input[axis])
}

/// Writes the elements of `x` of one group in the window of each output position to `windows`; 0 for padding.
fn unfold(shape: &ConvolutionShape, group: usize, x: &[f32], windows: &mut [f32]) {
    let [height, width, channels] = shape.input;
    let own = channels / shape.groups;
    let window = shape.window();
    let row = shape.output[1];
    // One task for each row of output positions.
    for_pieces(windows, row * window, |index, windows| {
        let image = index / shape.output[0];
        let top = index % shape.output[0];
        let x = &x[image * height * width * channels..][..height * width * channels];
        for (left, out) in windows.chunks_mut(window).enumerate() {
            for (element, out) in out.chunks_mut(own).enumerate() {
                let down = element / shape.kernel[1];
                let right = element % shape.kernel[1];
                match (source(shape, 0, top, down), source(shape, 1, left, right)) {
                    (Some(y), Some(x_at)) => {
                        let pixel = &x[(y * width + x_at) * channels + group * own..][..own];
                        out.copy_from_slice(pixel);
                    }
                    _ => out.fill(0.0),
                }
            }
        }
    });
}

/// Writes the input gradient of one group: for each pixel, the sum of the elements of `windows` that read it,
/// in a fixed order.
fn fold(shape: &ConvolutionShape, group: usize, windows: &[f32], dx: &mut [f32]) {
    let [height, width, channels] = shape.input;
    let own = channels / shape.groups;
    let window = shape.window();
    let [rows, columns] = [shape.output[0], shape.output[1]];
    // One task for each row of input pixels.
    for_pieces(dx, width * channels, |index, dx| {
        let image = index / height;
        let y = index % height;
        for (x, pixel) in dx.chunks_mut(channels).enumerate() {
            let pixel = &mut pixel[group * own..][..own];
            for (offset, pixel) in pixel.chunks_mut(CHANNELS).enumerate() {
                let mut sum = [0.0f32; CHANNELS];
                for (top, down) in readers(shape, 0, y) {
                    for (left, right) in readers(shape, 1, x) {
                        let position = (image * rows + top) * columns + left;
                        let element = (down * shape.kernel[1] + right) * own + offset * CHANNELS;
                        let read = &windows[position * window + element..][..pixel.len()];
                        sum.iter_mut().zip(read).for_each(|(sum, value)| *sum += value);
                    }
                }
                pixel.iter_mut().zip(sum).for_each(|(pixel, sum)| *pixel = sum);
            }
        }
    });
}

/// Number of channels that [`fold`] sums at once.
const CHANNELS: usize = 64;

/// Returns the windows along an axis that read row or column `at`, each with the index of the kernel element
/// that reads it.
fn readers(shape: &ConvolutionShape, axis: usize, at: usize) -> impl Iterator<Item = (usize, usize)> {
    let stride = shape.stride[axis];
    let dilation = shape.dilation[axis];
    let padded = at + shape.padding[axis];
    let positions = shape.output[axis];
    (0..shape.kernel[axis]).filter_map(move |kernel| {
        let start = padded.checked_sub(kernel * dilation)?;
        let position = start / stride;
        (start.is_multiple_of(stride) && position < positions).then_some((position, kernel))
    })
}
