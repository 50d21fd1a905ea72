//! ZeRO: the shards of parameters whose optimizer state each data-parallel rank owns.
//!
//! At stage 0 every rank owns all parameters. From stage 1 on, each rank owns an equal shard of every
//! gradient bucket, with the moments and master weights of the parameters in it. From stage 2 on, it sums
//! gradients in shards only. At stage 3 it also holds only its shard of the weights.

use std::ops::Range;

use collective::Axis;
use nn::Parameters;
use tensor::Tensor;

use super::buckets::{BucketLayout, BucketSlot};
use crate::error::Result;
use crate::shard::Shard;

/// Returns whether optimizer state is sharded over data-parallel ranks at this ZeRO stage.
pub fn shards_optimizer(zero_stage: u32) -> bool {
    zero_stage >= 1
}

/// Returns whether gradient sums are sharded over data-parallel ranks at this ZeRO stage. Ranks then run
/// lanes in turn.
pub fn shards_gradients(zero_stage: u32) -> bool {
    zero_stage >= 2
}

/// Returns whether weights are sharded over data-parallel ranks at this ZeRO stage.
pub fn shards_weights(zero_stage: u32) -> bool {
    zero_stage >= 3
}

/// Returns the range of a parameter's elements that data-parallel rank `rank` of `ranks` owns. The parameter
/// begins at element `offset` of an array of `all` elements. The range begins at a multiple of the norm's
/// chunk, and is empty if the rank owns none.
pub(super) fn owned(elements: usize, offset: usize, all: usize, ranks: usize, rank: usize) -> Range<usize> {
    let part = all / ranks;
    let inside = |end: usize| end.saturating_sub(offset).min(elements);
    inside(rank * part)..inside((rank + 1) * part)
}

/// A rank's shard of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterShard {
    /// Index of the parameter.
    pub parameter: usize,
    /// The owned range.
    pub shard: Shard,
}

impl ParameterShard {
    /// Returns the owned part of `whole`, a tensor of the parameter's length.
    ///
    /// # Errors
    /// The tensor is shorter than the shard's end.
    pub fn slice(&self, whole: &Tensor) -> Result<Tensor> {
        self.shard.slice(whole)
    }
}

/// The shards of all data-parallel ranks, which together cover each trained parameter once. A rank has at
/// most one shard per parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizerShards {
    /// Number of ranks with different shards; 1 if every rank owns everything.
    ranks: usize,
    own: Vec<ParameterShard>,
    /// By parameter; `None` for one without a gradient.
    positions: Vec<Option<Position>>,
}

/// The position of a parameter in its bucket, which is divided equally among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    /// Number of elements of the parameter.
    elements: usize,
    /// Index of the first element in the bucket.
    offset: usize,
    /// Number of elements of the bucket.
    bucket: usize,
}

impl OptimizerShards {
    /// Computes the shards at a ZeRO stage of the parameters whose gradients are in `layout`. This is rank
    /// `rank` of `ranks` along [`Axis::Data`].
    pub fn new(
        zero_stage: u32,
        parameters: &Parameters,
        layout: &BucketLayout,
        ranks: usize,
        rank: usize,
    ) -> Self {
        let sizes = parameters.list().iter().map(|parameter| parameter.weight.elements());
        if ranks == 1 || !shards_optimizer(zero_stage) {
            let whole = |elements: usize| Position { elements, offset: 0, bucket: elements };
            let trained = parameters.list().iter().map(|parameter| parameter.trained);
            let positions = trained.zip(sizes).map(|(trained, elements)| trained.then(|| whole(elements)));
            return Self::of_rank_in(positions.collect(), 1, 0);
        }
        let slots = layout.first_uses(parameters).into_iter();
        let position = |(slot, elements): (Option<BucketSlot>, usize)| {
            let BucketSlot { bucket, offset } = slot?;
            Some(Position { elements, offset, bucket: layout.elements[bucket] })
        };
        Self::of_rank_in(slots.zip(sizes).map(position).collect(), ranks, rank)
    }

    fn of_rank_in(positions: Vec<Option<Position>>, ranks: usize, rank: usize) -> Self {
        let shards = OptimizerShards { ranks, own: Vec::new(), positions };
        OptimizerShards { own: shards.owned_by(rank).collect(), ..shards }
    }

    /// Returns whether ranks own different shards.
    pub fn is_sharded(&self) -> bool {
        self.ranks > 1
    }

    /// This rank's shards, in the order of the parameters.
    pub fn own(&self) -> &[ParameterShard] {
        &self.own
    }

    /// Number of ranks with different shards; 1 if every rank owns everything.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The shards of `rank`, in the order of the parameters.
    pub fn owned_by(&self, rank: usize) -> impl Iterator<Item = ParameterShard> + '_ {
        let shard = move |parameter: usize| {
            let range = self.range(rank, parameter);
            let shard = match self.is_sharded() {
                true => Shard::along(Axis::Data, range),
                false => Shard { axis: None, range },
            };
            let owns = self.positions[parameter].is_some() && (!shard.is_empty() || !self.is_sharded());
            owns.then_some(ParameterShard { parameter, shard })
        };
        (0..self.positions.len()).filter_map(shard)
    }

    /// Returns the range of a parameter's elements that `rank` owns; empty if none. If every rank owns
    /// everything, only rank 0 is listed as owner.
    pub fn range(&self, rank: usize, parameter: usize) -> Range<usize> {
        match self.positions.get(parameter) {
            Some(Some(Position { elements, offset, bucket })) if rank < self.ranks => {
                owned(*elements, *offset, *bucket, self.ranks, rank)
            }
            _ => 0..0,
        }
    }
}

#[cfg(test)]
mod tests {
    use device::{DType, Description, Device, DeviceOptions};
    use nn::{Init, Parameters};
    use proptest::prelude::*;
    use tensor::ops::norm::CHUNK;

    use super::super::buckets::BucketEnd;
    use super::super::weight_layout::WeightLayout;
    use super::{BucketLayout, OptimizerShards, ParameterShard, Range};
    use collective::Axis;

    /// Creates parameters of these sizes, some of them with a second use.
    fn parameters(sizes: &[usize], reused: &[usize]) -> Parameters {
        let device = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap();
        let mut parameters = Parameters::new(&device, 1, DType::F32);
        for (index, size) in sizes.iter().enumerate() {
            if index.is_multiple_of(3) {
                parameters.begin_unit();
            }
            parameters.create(&format!("p{index}"), [*size], Init::Constant(0.0)).unwrap();
        }
        for index in reused {
            parameters.reuse(&format!("p{}", index % sizes.len())).unwrap();
        }
        parameters
    }

    proptest! {
        #[test]
        fn every_element_is_owned_once(
            sizes in prop::collection::vec(1_usize..40_000, 1..30),
            reused in prop::collection::vec(0_usize..30, 0..3),
            bucket_bytes in 4_usize..400_000,
            ranks in 1_usize..9,
            by_unit: bool,
        ) {
            let parameters = parameters(&sizes, &reused);
            let end = if by_unit { BucketEnd::Unit } else { BucketEnd::Bytes(bucket_bytes) };
            let layout = BucketLayout::from_parameters(&parameters, DType::F32, end, ranks);
            let weights = by_unit.then(|| WeightLayout::new(&parameters, &layout, ranks));
            let shards = OptimizerShards::new(1, &parameters, &layout, ranks, ranks - 1);
            prop_assert_eq!(shards.ranks(), ranks);
            prop_assert_eq!(shards.own(), shards.owned_by(ranks - 1).collect::<Vec<_>>());
            prop_assert_eq!(shards.is_sharded(), ranks > 1);
            for (parameter, size) in sizes.iter().enumerate() {
                // Each rank's shard begins where the previous one ends.
                let mut end = 0;
                for rank in 0..ranks {
                    let range = shards.range(rank, parameter);
                    let held = weights.as_ref().map(|weights| weights.range(rank, parameter));
                    let is_owned = |held: &Range<usize>| *held == range || held.len() + range.len() == 0;
                    prop_assert!(held.iter().all(is_owned), "{held:?} and {range:?}");
                    let mut listed = shards.owned_by(rank);
                    let listed = listed.find(|owned| owned.parameter == parameter);
                    prop_assert_eq!(listed.is_some(), !range.is_empty());
                    if let Some(ParameterShard { shard, .. }) = listed {
                        prop_assert_eq!(shard.axis, (ranks > 1).then_some(Axis::Data));
                        prop_assert_eq!(&shard.range, &range);
                        prop_assert_eq!(range.start, end);
                        prop_assert_eq!(range.start % CHUNK, 0);
                        end = range.end;
                    }
                }
                prop_assert_eq!(end, *size);
            }
            // A rank owns the same range of a parameter in the gradients of all its uses.
            for used in parameters.uses() {
                let slot = layout.slots[used.id.0 as usize];
                for rank in 0..ranks {
                    let range = shards.range(rank, used.parameter.0);
                    if !range.is_empty() {
                        let own = layout.elements[slot.bucket] / ranks;
                        let start = slot.offset + range.start;
                        let end = slot.offset + range.end;
                        prop_assert!(rank * own <= start && end <= (rank + 1) * own);
                    }
                }
            }
            // Shards are in order, and no rank has more than its share of the buckets of first uses.
            for owned in (0..ranks).map(|rank| shards.owned_by(rank).collect::<Vec<_>>()) {
                prop_assert!(owned.windows(2).all(|pair| pair[0].parameter < pair[1].parameter));
                let elements: usize = owned.iter().map(|owned| owned.shard.range.len()).sum();
                prop_assert!(elements * ranks <= layout.elements.iter().sum());
            }
            let unsharded = OptimizerShards::new(0, &parameters, &layout, ranks, ranks - 1);
            prop_assert!(!unsharded.is_sharded());
            if ranks == 1 {
                prop_assert_eq!(&shards, &unsharded);
            }
        }
    }
}
