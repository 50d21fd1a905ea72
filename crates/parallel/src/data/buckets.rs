//! Where each gradient lies in the flat buckets.

use autograd::UseId;

/// Buckets begin, and gradients in them lie, on multiples of this many f32 elements (512 bytes).
const ALIGNMENT: usize = 128;

/// A gradient's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the bucket.
    pub bucket: usize,
    /// First element in it.
    pub offset: usize,
}

/// The buckets of one gradient set, filled in the order in which backward completes gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// Elements of each bucket, a multiple of ranks × 128 so that it divides into aligned shards.
    pub elements: Vec<usize>,
    /// Gradients in each bucket.
    pub members: Vec<usize>,
    /// Place by use.
    pub places: Vec<Place>,
}

impl BucketLayout {
    /// Places the gradients of `sizes` elements (index: use), last use first, closing a bucket before it
    /// would exceed `bucket_elements`; a larger gradient has a bucket of its own.
    pub fn new(sizes: &[usize], bucket_elements: usize, ranks: usize) -> Self {
        let mut layout = BucketLayout {
            elements: Vec::new(),
            members: Vec::new(),
            places: vec![Place { bucket: 0, offset: 0 }; sizes.len()],
        };
        let mut filled = 0;
        for (index, size) in sizes.iter().enumerate().rev() {
            let size = size.next_multiple_of(ALIGNMENT);
            if layout.members.is_empty() || filled + size > bucket_elements {
                layout.close(filled, ranks);
                layout.members.push(0);
                filled = 0;
            }
            let bucket = layout.members.len() - 1;
            layout.places[index] = Place { bucket, offset: filled };
            layout.members[bucket] += 1;
            filled += size;
        }
        layout.close(filled, ranks);
        layout
    }

    fn close(&mut self, filled: usize, ranks: usize) {
        if self.elements.len() < self.members.len() {
            self.elements.push(filled.next_multiple_of(ALIGNMENT * ranks));
        }
    }

    /// The bucket of a use, if there is such a use.
    pub fn place(&self, use_id: UseId) -> Option<Place> {
        self.places.get(use_id.0 as usize).copied()
    }

    /// Elements of the largest bucket.
    pub fn largest(&self) -> usize {
        self.elements.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ALIGNMENT, BucketLayout};

    proptest! {
        #[test]
        fn gradients_lie_apart_aligned_and_inside(
            sizes in prop::collection::vec(1_usize..5000, 0..40),
            bucket_elements in 1_usize..6000,
            ranks in prop::sample::select(vec![1_usize, 2, 4, 8]),
        ) {
            let layout = BucketLayout::new(&sizes, bucket_elements, ranks);
            prop_assert_eq!(layout.elements.len(), layout.members.len());
            prop_assert_eq!(layout.members.iter().sum::<usize>(), sizes.len());
            prop_assert!(layout.elements.iter().all(|elements| elements % (ALIGNMENT * ranks) == 0));
            let mut spans: Vec<_> =
                layout.places.iter().zip(&sizes).map(|(p, size)| (p.bucket, p.offset, p.offset + size)).collect();
            spans.sort_unstable();
            for (bucket, start, end) in &spans {
                prop_assert!(start % ALIGNMENT == 0 && *end <= layout.elements[*bucket]);
            }
            prop_assert!(spans.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1));
            // Backward order: later uses come no later.
            prop_assert!(layout.places.windows(2).all(|pair| pair[0].bucket >= pair[1].bucket));
        }
    }
}
