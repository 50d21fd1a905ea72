//! Shapes of up to four dimensions.

use std::fmt;

/// Sizes of a dense row-major array, outermost first; at most four.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    sizes: [usize; 4],
    rank: u8,
}

impl Shape {
    /// Returns the shape with these sizes; `None` if there are more than four.
    pub fn from_dims(dims: &[usize]) -> Option<Self> {
        let mut sizes = [1; 4];
        sizes.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(Shape { sizes, rank: dims.len() as u8 })
    }

    /// Returns the sizes, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.sizes[..usize::from(self.rank)]
    }

    /// Returns the number of elements: the product of the sizes, 1 for a scalar.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// Returns the innermost size; 1 for a scalar.
    pub fn columns(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Returns the shape with dimension `axis` resized to `size`; `None` if there is no such dimension.
    #[must_use]
    pub fn with(mut self, axis: usize, size: usize) -> Option<Self> {
        *self.sizes[..usize::from(self.rank)].get_mut(axis)? = size;
        Some(self)
    }

    /// Returns the shape with two dimensions exchanged; `None` if there are no such dimensions.
    #[must_use]
    pub fn exchanged(mut self, one: usize, other: usize) -> Option<Self> {
        let rank = usize::from(self.rank);
        if one >= rank || other >= rank {
            return None;
        }
        self.sizes.swap(one, other);
        Some(self)
    }

    /// Returns the number of rows of the array as a matrix: the product of all sizes but the innermost.
    pub fn rows(&self) -> usize {
        self.dims().split_last().map_or(1, |(_, outer)| outer.iter().product())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        const { assert!(N <= 4, "shapes have at most four dimensions") };
        let mut sizes = [1; 4];
        sizes[..N].copy_from_slice(&dims);
        Shape { sizes, rank: N as u8 }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
