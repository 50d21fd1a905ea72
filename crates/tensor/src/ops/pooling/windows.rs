//! Windows of a pooling operator, and the sizes derived from them.

use std::ops::Range;

use crate::ops::check;
use crate::{Result, Tensor};

/// Windows over an image. Pairs are (vertical, horizontal). Windows that would reach beyond the padded image
/// are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Height and width of a window.
    pub size: [usize; 2],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; 2],
    /// Rows and columns added on each side of the image; at most half of the size.
    pub padding: [usize; 2],
    /// Whether a mean divides by the window's size, padding included; otherwise by its number of image
    /// elements.
    pub counts_padding: bool,
}

impl Windows {
    /// Returns a single window over a whole image of this height and width.
    #[must_use]
    pub fn whole(size: [usize; 2]) -> Self {
        Windows { size, stride: size, padding: [0, 0], counts_padding: false }
    }

    pub(super) fn shape(&self, operator: &'static str, x: &Tensor) -> Result<WindowShape> {
        check::rank(operator, "x", x, 4)?;
        let [batch, height, width, channels] = *x.shape().dims() else {
            return Err(check::wrong(operator, "x", x, "4 dimensions".to_owned()));
        };
        self.shape_of(operator, x, [batch, height, width, channels])
    }

    /// Returns the sizes of windows over an input of this shape.
    ///
    /// # Errors
    /// Windows that do not fit the input, reported for `operand`.
    pub(super) fn shape_of(
        &self,
        operator: &'static str,
        operand: &Tensor,
        [batch, height, width, channels]: [usize; 4],
    ) -> Result<WindowShape> {
        let mut output = [0, 0];
        for (axis, size) in [height, width].into_iter().enumerate() {
            let padded = size + 2 * self.padding[axis];
            let own = self.size[axis];
            if own == 0 || self.stride[axis] == 0 || own > padded || 2 * self.padding[axis] > own {
                let expected =
                    format!("images that windows of {:?} with padding {:?} fit", self.size, self.padding);
                return Err(check::wrong(operator, "x", operand, expected));
            }
            output[axis] = (padded - own) / self.stride[axis] + 1;
        }
        Ok(WindowShape { windows: *self, batch, input: [height, width], output, channels })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WindowShape {
    pub(super) windows: Windows,
    pub(super) batch: usize,
    /// Height and width of an input image.
    pub(super) input: [usize; 2],
    /// Height and width of an output image.
    pub(super) output: [usize; 2],
    pub(super) channels: usize,
}

impl WindowShape {
    pub(super) fn output(&self) -> [usize; 4] {
        [self.batch, self.output[0], self.output[1], self.channels]
    }

    /// Returns the divisor of every window's sum; 0: the number of the window's elements that are not
    /// padding.
    pub(super) fn divisor(&self) -> usize {
        if self.windows.counts_padding { self.windows.size.iter().product() } else { 0 }
    }

    /// Returns the input indices along an axis that a window covers, without padding.
    pub(super) fn elements(&self, axis: usize, window: usize) -> Range<usize> {
        let start = window * self.windows.stride[axis];
        let padding = self.windows.padding[axis];
        let size = self.windows.size[axis];
        start.saturating_sub(padding)..(start + size).saturating_sub(padding).min(self.input[axis])
    }

    /// Returns the windows along an axis that contain an element.
    pub(super) fn readers(&self, axis: usize, element: usize) -> Range<usize> {
        let stride = self.windows.stride[axis];
        let size = self.windows.size[axis];
        let at = element + self.windows.padding[axis];
        let first = if at < size { 0 } else { (at - size) / stride + 1 };
        first..self.output[axis].min(at / stride + 1)
    }
}
