//! Strided arrays of up to four dimensions in a dense storage.

use device::cuda::Launch;

use super::gpu;
use crate::{Result, Shape};

/// The dimensions of an array; missing dimensions are 1.
pub(super) type Sizes = [usize; 4];

/// Offset and strides of an array: an element has storage index `offset` + Σ index · stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) offset: usize,
    pub(super) strides: Sizes,
}

pub(super) fn sizes(shape: Shape) -> Sizes {
    let mut sizes = [1; 4];
    sizes.iter_mut().zip(shape.dims()).for_each(|(size, own)| *size = *own);
    sizes
}

impl Layout {
    /// Returns the row-major layout without gaps.
    pub(super) fn dense(shape: Shape) -> Self {
        let mut strides = [0; 4];
        let mut stride = 1;
        for (axis, size) in shape.dims().iter().enumerate().rev() {
            strides[axis] = stride;
            stride *= size;
        }
        Layout { offset: 0, strides }
    }

    /// Returns the row-major layout broadcast to `target`: dimensions of one element are repeated. `None` if
    /// other sizes or the numbers of dimensions differ.
    pub(super) fn repeated(shape: Shape, target: Shape) -> Option<Self> {
        let mut layout = Self::dense(shape);
        if shape.dims().len() != target.dims().len() {
            return None;
        }
        for (axis, (own, size)) in shape.dims().iter().zip(target.dims()).enumerate() {
            match *own {
                same if same == *size => {}
                1 => layout.strides[axis] = 0,
                _ => return None,
            }
        }
        Some(layout)
    }

    /// Returns the storage index of the element with row-major number `linear` in an array of `sizes`.
    pub(super) fn offset(&self, sizes: &Sizes, mut linear: usize) -> usize {
        let mut offset = self.offset;
        for axis in (0..4).rev() {
            offset += linear % sizes[axis] * self.strides[axis];
            linear /= sizes[axis];
        }
        offset
    }

    /// Calls `visit` with the storage indices of `count` elements from row-major number `first` on, in order.
    pub(super) fn visit_offsets(
        &self,
        sizes: &Sizes,
        first: usize,
        count: usize,
        mut visit: impl FnMut(usize),
    ) {
        let mut index = [0; 4];
        let mut linear = first;
        for axis in (0..4).rev() {
            index[axis] = linear % sizes[axis];
            linear /= sizes[axis];
        }
        let mut offset = self.offset(sizes, first);
        for _ in 0..count {
            visit(offset);
            for axis in (0..4).rev() {
                index[axis] += 1;
                offset += self.strides[axis];
                if index[axis] < sizes[axis] {
                    break;
                }
                offset -= index[axis] * self.strides[axis];
                index[axis] = 0;
            }
        }
    }
}

pub(super) fn add_sizes<'a>(operator: &'static str, launch: Launch<'a>, sizes: &Sizes) -> Result<Launch<'a>> {
    sizes[1..].iter().try_fold(launch, |launch, size| Ok(launch.u32(gpu::word(operator, *size)?)))
}

/// Adds the offset and strides of a layout to a launch.
pub(super) fn add_layout<'a>(launch: Launch<'a>, layout: &Layout) -> Launch<'a> {
    layout.strides.iter().fold(launch.u64(layout.offset as u64), |launch, stride| launch.u64(*stride as u64))
}
