//! Buffers that arrays of different lengths take turns in.

/// A greedy assignment of arrays to few and short buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BufferAssignment {
    /// Index of each array's buffer.
    pub(super) buffer_of: Vec<usize>,
    /// Number of elements of each buffer.
    pub(super) elements: Vec<usize>,
}

impl BufferAssignment {
    /// Assigns arrays of `sizes` elements that are used in the order of `sequence`. Any `window` neighbours
    /// in the sequence get different buffers.
    pub(super) fn new(sizes: &[usize], sequence: &[usize], window: usize) -> Self {
        let mut neighbours = vec![Vec::new(); sizes.len()];
        for run in sequence.windows(window.clamp(1, sequence.len().max(1))) {
            for (at, array) in run.iter().enumerate() {
                let others = run[at + 1..].iter().filter(|other| *other != array);
                for other in others {
                    neighbours[*array].push(*other);
                    neighbours[*other].push(*array);
                }
            }
        }
        let mut by_size: Vec<_> = (0..sizes.len()).collect();
        by_size.sort_by_key(|array| std::cmp::Reverse(sizes[*array]));
        let mut buffer_of = vec![usize::MAX; sizes.len()];
        let mut elements = Vec::new();
        for array in by_size {
            let taken = |buffer: usize| neighbours[array].iter().any(|other| buffer_of[*other] == buffer);
            // The last buffer found is the shortest that is long enough.
            let buffer = (0..elements.len()).rev().find(|buffer| !taken(*buffer));
            buffer_of[array] = buffer.unwrap_or_else(|| {
                elements.push(sizes[array]);
                elements.len() - 1
            });
        }
        BufferAssignment { buffer_of, elements }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::BufferAssignment;

    #[test]
    fn ends_share_a_buffer_and_blocks_take_turns() {
        let sizes = [100, 10, 10, 10, 10, 90];
        let assignment = BufferAssignment::new(&sizes, &[0, 1, 2, 3, 4, 5], 2);
        assert_eq!((assignment.buffer_of[0], assignment.buffer_of[5]), (0, 0));
        assert_eq!(assignment.elements.iter().sum::<usize>(), 120);
        // A table with a second use at the end.
        let tied = BufferAssignment::new(&sizes, &[0, 1, 2, 3, 4, 5, 0], 2);
        assert_ne!(tied.buffer_of[0], tied.buffer_of[5]);
        assert_eq!(BufferAssignment::new(&[7], &[0], 2).elements, [7]);
        assert!(BufferAssignment::new(&[], &[], 2).elements.is_empty());
    }

    proptest! {
        #[test]
        fn neighbours_have_different_buffers_that_are_long_enough(
            sizes in prop::collection::vec(1_usize..100, 1..20),
            order in prop::collection::vec(0_usize..100, 0..40),
            window in 1_usize..5,
        ) {
            let sequence: Vec<_> = order.iter().map(|number| number % sizes.len()).collect();
            let assignment = BufferAssignment::new(&sizes, &sequence, window);
            for (array, buffer) in assignment.buffer_of.iter().enumerate() {
                prop_assert!(assignment.elements[*buffer] >= sizes[array]);
            }
            for run in sequence.windows(window.min(sequence.len().max(1))) {
                for (at, array) in run.iter().enumerate() {
                    let buffer = |array: &usize| assignment.buffer_of[*array];
                    let apart = |other: &usize| other == array || buffer(other) != buffer(array);
                    prop_assert!(run[at + 1..].iter().all(apart));
                }
            }
        }
    }
}
