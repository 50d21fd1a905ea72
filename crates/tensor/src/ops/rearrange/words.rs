//! Division of copied arrays into words.

use crate::ops::layout::{Layout, Sizes};

/// Bytes of words, widest first.
const WIDE: [usize; 3] = [16, 8, 4];

/// An array in two layouts, in words of one or several neighbouring elements. Offsets and strides are in
/// words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) sizes: Sizes,
    pub(super) layouts: [Layout; 2],
    pub(super) bytes: usize,
}

impl Words {
    /// Merges the dimensions of an array of `sizes` elements of `bytes` bytes, and divides it into the widest
    /// words that are aligned in both layouts. Storage starts at the `addresses`.
    pub(super) fn widest(sizes: Sizes, layouts: [Layout; 2], addresses: [u64; 2], bytes: usize) -> Self {
        let merged = Self::merged(sizes, layouts, bytes);
        let is_dense = merged.layouts.iter().all(|layout| layout.strides[3] == 1);
        let fits = |wide: &usize| {
            let lanes = wide / bytes;
            let divides = |layout: &Layout| {
                let steps = layout.strides[..3].iter().chain([&layout.offset]);
                steps.into_iter().all(|step| step.is_multiple_of(lanes))
            };
            let is_aligned = addresses.iter().all(|address| address.is_multiple_of(*wide as u64));
            is_aligned && merged.sizes[3].is_multiple_of(lanes) && merged.layouts.iter().all(divides)
        };
        match WIDE.iter().filter(|wide| is_dense && **wide > bytes).find(|wide| fits(wide)) {
            Some(wide) => merged.widened(wide / bytes),
            None => merged,
        }
    }

    /// Merges each dimension with the next if elements of both follow one another in both layouts. The
    /// innermost merged dimension is the last, the outermost the first, and others are between.
    fn merged(sizes: Sizes, layouts: [Layout; 2], bytes: usize) -> Self {
        // Innermost first: size, and stride in both layouts.
        let mut merged: Vec<(usize, [usize; 2])> = Vec::new();
        for axis in (0..4).rev().filter(|axis| sizes[*axis] > 1) {
            let strides = layouts.map(|layout| layout.strides[axis]);
            match merged.last_mut() {
                Some((size, inner)) if inner.map(|stride| stride * *size) == strides => *size *= sizes[axis],
                _ => merged.push((sizes[axis], strides)),
            }
        }
        let mut words =
            Words { sizes: [1; 4], layouts: layouts.map(|own| Layout { strides: [0; 4], ..own }), bytes };
        let count = merged.len();
        for (index, (size, strides)) in merged.into_iter().enumerate() {
            let axis = if index > 0 && index + 1 == count { 0 } else { 3 - index };
            words.sizes[axis] = size;
            words.layouts.iter_mut().zip(strides).for_each(|(layout, stride)| layout.strides[axis] = stride);
        }
        words
    }

    /// Joins `lanes` neighbouring elements to a word.
    fn widened(mut self, lanes: usize) -> Self {
        self.sizes[3] /= lanes;
        self.bytes *= lanes;
        for layout in &mut self.layouts {
            layout.offset /= lanes;
            layout.strides[..3].iter_mut().for_each(|stride| *stride /= lanes);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(offset: usize, strides: Sizes) -> Layout {
        Layout { offset, strides }
    }

    /// Returns the copied bytes as (source, target), in order of targets.
    fn pairs(words: &Words, bytes: usize) -> Vec<[usize; 2]> {
        let count: usize = words.sizes.iter().product();
        let first = |number| words.layouts.map(|layout| layout.offset(&words.sizes, number) * words.bytes);
        let each = |number| {
            let [from, to] = first(number);
            (0..words.bytes / bytes).map(move |lane| [from + lane * bytes, to + lane * bytes])
        };
        let mut all: Vec<_> = (0..count).flat_map(each).collect();
        all.sort_by_key(|[_, to]| *to);
        all
    }

    #[test]
    fn words_copy_the_elements_of_both_layouts() {
        let table = [
            // A contiguous copy is one dimension of whole words.
            ([2, 3, 8, 4], layout(0, [96, 32, 4, 1]), layout(0, [96, 32, 4, 1]), 0, [1, 1, 1, 24], 16),
            // Columns of rows.
            ([2, 3, 16, 1], layout(32, [144, 48, 1, 0]), layout(0, [48, 16, 1, 1]), 0, [6, 1, 1, 2], 16),
            ([2, 3, 12, 1], layout(4, [108, 36, 1, 0]), layout(0, [36, 12, 1, 1]), 0, [6, 1, 1, 3], 8),
            ([2, 3, 16, 1], layout(1, [144, 48, 1, 0]), layout(0, [48, 16, 1, 1]), 0, [6, 1, 1, 16], 2),
            // The first half of each head, whose rows and heads merge.
            ([2, 3, 4, 8], layout(0, [192, 64, 16, 1]), layout(0, [96, 32, 8, 1]), 0, [24, 1, 1, 1], 16),
            // Unaligned storage.
            ([2, 3, 4, 8], layout(0, [192, 64, 16, 1]), layout(0, [96, 32, 8, 1]), 4, [24, 1, 1, 4], 4),
            // A transpose of the inner dimensions, and of the outer.
            ([2, 3, 5, 1], layout(0, [15, 1, 3, 0]), layout(0, [15, 5, 1, 1]), 0, [2, 1, 3, 5], 2),
            ([3, 2, 8, 1], layout(0, [8, 24, 1, 0]), layout(0, [16, 8, 1, 1]), 0, [3, 1, 2, 1], 16),
            // A repeated row, and one element.
            ([5, 3, 1, 1], layout(0, [0, 1, 0, 0]), layout(0, [3, 1, 1, 1]), 0, [5, 1, 1, 3], 2),
            ([1, 1, 1, 1], layout(7, [1, 1, 1, 1]), layout(2, [1, 1, 1, 1]), 0, [1, 1, 1, 1], 2),
        ];
        for (sizes, from, to, address, expected, bytes) in table {
            let words = Words::widest(sizes, [from, to], [address, 0], 2);
            assert_eq!((words.sizes, words.bytes), (expected, bytes), "{sizes:?} from {from:?} to {to:?}");
            let elements = Words { sizes, layouts: [from, to], bytes: 2 };
            assert_eq!(pairs(&words, 2), pairs(&elements, 2), "{sizes:?} from {from:?} to {to:?}");
        }
    }
}
