//! The flat buckets that hold a model's gradients.

use autograd::UseId;
use device::DType;
use nn::Parameters;
use tensor::ops::norm::CHUNK;

/// Position of a gradient in the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSlot {
    /// Index of the bucket.
    pub bucket: usize,
    /// Index of the first element in the bucket.
    pub offset: usize,
}

/// The gradient of one use of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// Number of elements.
    pub elements: usize,
    /// Whether the parameter has other uses, in this stage or another.
    pub shared: bool,
    /// Index of the parameter's unit.
    pub unit: usize,
    /// Whether only FP8 codes of the parameter are gathered.
    pub in_fp8: bool,
}

/// Rule for closing a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketEnd {
    /// Closes a bucket before it would exceed this many bytes.
    Bytes(usize),
    /// Closes a bucket at the end of each unit; FP8 parameters of a unit get a separate bucket.
    Unit,
}

/// The buckets of one gradient set, filled in the order in which backward completes gradients.
///
/// Every gradient, and every rank's shard of a bucket, begins at a multiple of the norm's chunk, so that
/// shards have the same chunks as the whole gradient. If a parameter has several uses, each use's gradient
/// has a bucket of its own. These buckets are equally long: a rank owns the same range of each, and the uses
/// are added without another exchange. This closes one or two buckets early, which costs little because such
/// a parameter is usually a large table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// Number of elements of each bucket, a multiple of ranks × [`CHUNK`].
    pub elements: Vec<usize>,
    /// Number of gradients in each bucket.
    pub members: Vec<usize>,
    /// Position of each use's gradient.
    pub slots: Vec<BucketSlot>,
}

impl BucketLayout {
    /// Lays out the gradients of a model, of type `dtype`, for `ranks` data-parallel ranks.
    pub fn from_parameters(parameters: &Parameters, dtype: DType, end: BucketEnd, ranks: usize) -> Self {
        let uses = parameters.uses();
        let mut counts = vec![0; parameters.list().len()];
        uses.iter().for_each(|used| counts[used.parameter.0] += 1);
        let gradient = |used: &nn::Use| {
            let parameter = &parameters.list()[used.parameter.0];
            let shared = counts[used.parameter.0] > 1 || parameter.shared;
            let in_fp8 = parameters.is_only_in_fp8(used.parameter);
            Gradient { elements: parameter.weight.elements(), shared, unit: parameter.unit, in_fp8 }
        };
        let order = parameters.completion_order();
        let gradients: Vec<_> = order.iter().map(gradient).collect();
        let layout = BucketLayout::new(&gradients, dtype, end, ranks);
        let mut slots = layout.slots.clone();
        order.iter().zip(&layout.slots).for_each(|(used, slot)| slots[used.id.0 as usize] = *slot);
        BucketLayout { slots, ..layout }
    }

    /// Lays out `gradients` of type `dtype`, the last one first. A gradient longer than a bucket, or of a
    /// shared parameter, gets a bucket of its own.
    pub fn new(gradients: &[Gradient], dtype: DType, end: BucketEnd, ranks: usize) -> Self {
        let mut slots = vec![BucketSlot { bucket: 0, offset: 0 }; gradients.len()];
        let mut filled = Vec::new();
        let mut members = Vec::new();
        // The open bucket of ordinary parameters, and of FP8 parameters.
        let mut open = [None; 2];
        let mut last_unit = 0;
        for (index, Gradient { elements, shared, unit, in_fp8 }) in gradients.iter().enumerate().rev() {
            let elements = elements.next_multiple_of(CHUNK);
            let class = usize::from(end == BucketEnd::Unit && *in_fp8);
            if std::mem::replace(&mut last_unit, *unit) != *unit && end == BucketEnd::Unit {
                open = [None; 2];
            }
            let is_full = |bucket: usize| match end {
                BucketEnd::Bytes(bytes) => filled[bucket] + elements > bytes / dtype.bytes(),
                BucketEnd::Unit => false,
            };
            let bucket = open[class].filter(|bucket| !shared && !is_full(*bucket)).unwrap_or_else(|| {
                filled.push(0);
                members.push(0);
                members.len() - 1
            });
            slots[index] = BucketSlot { bucket, offset: filled[bucket] };
            members[bucket] += 1;
            filled[bucket] += elements;
            open[class] = (!shared).then_some(bucket);
        }
        let elements =
            filled.into_iter().map(|filled: usize| filled.next_multiple_of(CHUNK * ranks)).collect();
        BucketLayout { elements, members, slots }
    }

    /// Returns the position of a use's gradient; `None` for an unknown use.
    pub fn slot(&self, use_id: UseId) -> Option<BucketSlot> {
        self.slots.get(use_id.0 as usize).copied()
    }

    /// Returns the position of the gradient of each parameter's first use; `None` for a parameter without
    /// uses.
    pub fn first_uses(&self, parameters: &Parameters) -> Vec<Option<BucketSlot>> {
        let mut first = vec![None; parameters.list().len()];
        for (used, slot) in parameters.uses().iter().zip(&self.slots) {
            first[used.parameter.0].get_or_insert(*slot);
        }
        first
    }

    /// Number of elements of the largest bucket.
    pub fn largest(&self) -> usize {
        self.elements.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use device::DType;

    use super::{BucketEnd, BucketLayout, CHUNK, Gradient};

    proptest! {
        #[test]
        fn gradients_are_disjoint_aligned_and_inside_their_bucket(
            gradients in prop::collection::vec((1_usize..20_000, prop::bool::weighted(0.1)), 0..40),
            bucket_elements in 1_usize..60_000,
            ranks in 1_usize..9,
            by_unit: bool,
            per_unit in 1_usize..6,
        ) {
            let gradient = |(index, (elements, shared))| {
                let unit = index / per_unit;
                let in_fp8 = index % 3 == 0;
                Gradient { elements, shared, unit, in_fp8 }
            };
            let gradients: Vec<_> = gradients.into_iter().enumerate().map(gradient).collect();
            let end = if by_unit { BucketEnd::Unit } else { BucketEnd::Bytes(bucket_elements) };
            let layout = BucketLayout::new(&gradients, DType::U8, end, ranks);
            prop_assert_eq!(layout.elements.len(), layout.members.len());
            prop_assert_eq!(layout.members.iter().sum::<usize>(), gradients.len());
            prop_assert!(layout.members.iter().all(|members| *members > 0));
            prop_assert!(layout.elements.iter().all(|elements| elements % (CHUNK * ranks) == 0));
            let mut spans: Vec<_> = layout
                .slots
                .iter()
                .zip(&gradients)
                .map(|(slot, g)| (slot.bucket, slot.offset, slot.offset + g.elements))
                .collect();
            spans.sort_unstable();
            for (bucket, start, end) in &spans {
                prop_assert!(start % CHUNK == 0 && *end <= layout.elements[*bucket]);
            }
            prop_assert!(spans.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1));
            // In backward order, later uses are never in later buckets, except FP8 parameters within a unit.
            let ordered = layout.slots.windows(2).all(|pair| pair[0].bucket >= pair[1].bucket);
            prop_assert!(by_unit || ordered);
            for (slot, gradient) in layout.slots.iter().zip(&gradients) {
                prop_assert!(!gradient.shared || layout.members[slot.bucket] == 1);
            }
            let mut pairs = layout.slots.windows(2).zip(gradients.windows(2));
            let is_apart = |slots: &[super::BucketSlot]| slots[0].bucket != slots[1].bucket;
            prop_assert!(!by_unit || pairs.all(|(slots, of)| of[0].unit == of[1].unit || is_apart(slots)));
        }
    }
}
