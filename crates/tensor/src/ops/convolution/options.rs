//! Settings of a convolution, and its derived sizes.

use device::ConvolutionShape;

use super::shapes::output_sizes;
use crate::ops::check;
use crate::{Result, Tensor};

/// Stride, padding and dilation, each as (vertical, horizontal), and the number of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionOptions {
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; 2],
    /// Rows and columns of zeros on each side of the input.
    pub padding: [usize; 2],
    /// Distance between neighbouring elements of a window; at least 1.
    pub dilation: [usize; 2],
    /// Number of groups of channels that are convolved separately; divides both numbers of channels.
    pub groups: usize,
}

impl Default for ConvolutionOptions {
    /// Returns stride 1, no padding, no dilation, one group.
    fn default() -> Self {
        ConvolutionOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }
    }
}

impl ConvolutionOptions {
    /// Returns the sizes of a convolution of `x` with `weight`.
    ///
    /// # Errors
    /// Shapes that do not agree, a kernel larger than the padded input, a stride, dilation or number of
    /// groups of 0.
    pub(in crate::ops) fn shape(
        &self,
        operator: &'static str,
        x: &Tensor,
        weight: &Tensor,
    ) -> Result<ConvolutionShape> {
        check::rank(operator, "x", x, 4)?;
        let [batch, height, width, channels] = *x.shape().dims() else {
            return Err(check::wrong(operator, "x", x, "4 dimensions".to_owned()));
        };
        self.sizes(operator, weight, batch, [height, width, channels])
    }

    /// Returns the sizes of the convolution whose output gradient is `dy`, for inputs of this height and
    /// width.
    pub(super) fn shape_of_gradient(
        &self,
        operator: &'static str,
        dy: &Tensor,
        weight: &Tensor,
        [height, width]: [usize; 2],
    ) -> Result<ConvolutionShape> {
        check::rank(operator, "dy", dy, 4)?;
        let batch = dy.shape().dims()[0];
        let shape =
            self.sizes(operator, weight, batch, [height, width, weight.shape().columns() * self.groups])?;
        check::shape(operator, "dy", dy, output_sizes(&shape))?;
        Ok(shape)
    }

    fn sizes(
        &self,
        operator: &'static str,
        weight: &Tensor,
        batch: usize,
        input: [usize; 3],
    ) -> Result<ConvolutionShape> {
        let ConvolutionOptions { stride, padding, dilation, groups } = *self;
        check::rank(operator, "weight", weight, 4)?;
        let sizes = weight.shape();
        let out = sizes.dims()[0];
        let kernel = [sizes.dims()[1], sizes.dims()[2]];
        let channels = sizes.columns();
        let positive = [groups, stride[0], stride[1], dilation[0], dilation[1]].iter().all(|size| *size > 0);
        if !positive || channels * groups != input[2] || !out.is_multiple_of(groups) {
            let expected = format!(
                "[out, height, width, {} channels / {groups} groups], with out a multiple of the groups",
                input[2]
            );
            return Err(check::wrong(operator, "weight", weight, expected));
        }
        let mut output = [0, 0, out];
        for axis in 0..2 {
            let padded = input[axis] + 2 * padding[axis];
            let extent = dilation[axis] * (kernel[axis] - 1) + 1;
            if extent > padded {
                let expected =
                    format!("a kernel of at most {padded} × … in an image of {} × {}", input[0], input[1]);
                return Err(check::wrong(operator, "weight", weight, expected));
            }
            output[axis] = (padded - extent) / stride[axis] + 1;
        }
        Ok(ConvolutionShape { batch, input, output, kernel, stride, padding, dilation, groups })
    }
}

/// Returns whether the convolution is a matmul: each pixel is multiplied with one matrix.
pub(super) fn is_matmul(shape: &ConvolutionShape) -> bool {
    let ConvolutionShape { kernel, stride, padding, dilation, groups, .. } = *shape;
    multiplies_pixels(&kernel, &ConvolutionOptions { stride, padding, dilation, groups })
}

/// Returns whether a convolution with a kernel of this height and width multiplies each pixel with one
/// matrix.
pub(super) fn multiplies_pixels(kernel: &[usize], options: &ConvolutionOptions) -> bool {
    let ConvolutionOptions { stride, padding, groups, .. } = *options;
    kernel == [1, 1] && stride == [1, 1] && padding == [0, 0] && groups == 1
}
