//! ZeRO: the parts of parameters whose optimizer state a data-parallel rank owns.
//!
//! At stage 0 every rank owns all parameters. From stage 1 on, each rank owns an equal part of every gradient
//! bucket, and with it the moments and master weights of the parameters there; from stage 2 on, it sums
//! gradients in parts only, and at stage 3 it holds only that part of the weights used for computing.

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

/// Returns whether gradient sums are sharded over data-parallel ranks at this ZeRO stage. The ranks then run
/// lanes in turn.
pub fn shards_gradients(zero_stage: u32) -> bool {
    zero_stage >= 2
}

/// Returns whether weights are sharded over data-parallel ranks at this ZeRO stage.
pub fn shards_weights(zero_stage: u32) -> bool {
    zero_stage >= 3
}

/// Returns the range of a parameter's elements that data-parallel rank `rank` of `ranks` owns, if the
/// parameter begins at element `offset` of an array of `all` elements. It starts at a multiple of the norm's
/// chunk, and is empty if the rank owns none.
pub(super) fn owned(elements: usize, offset: usize, all: usize, ranks: usize, rank: usize) -> Range<usize> {
    let part = all / ranks;
    let inside = |end: usize| end.saturating_sub(offset).min(elements);
    inside(rank * part)..inside((rank + 1) * part)
}

/// The part of one parameter that a rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterShard {
    /// Index of the parameter.
    pub parameter: usize,
    /// The owned part.
    pub shard: Shard,
}

impl ParameterShard {
    /// Returns the owned part of a tensor of the parameter's length.
    ///
    /// # Errors
    /// A tensor that is shorter than the shard's end.
    pub fn of(&self, whole: &Tensor) -> Result<Tensor> {
        self.shard.of(whole)
    }
}

/// The shards of all data-parallel ranks, which together contain each trained parameter once. A rank has at
/// most one shard of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizerShards {
    /// Shards by rank; a single entry if every rank owns everything.
    by_rank: Vec<Vec<ParameterShard>>,
    own: usize,
}

impl OptimizerShards {
    /// Computes the shards at a ZeRO stage of the parameters whose gradients are in `layout`; `rank` is this
    /// rank of `ranks` along [`Axis::Data`].
    pub fn new(
        zero_stage: u32,
        parameters: &Parameters,
        layout: &BucketLayout,
        ranks: usize,
        rank: usize,
    ) -> Self {
        if ranks == 1 || !shards_optimizer(zero_stage) {
            let whole = |(parameter, of): (usize, &nn::Parameter)| ParameterShard {
                parameter,
                shard: Shard::whole(of.weight.elements()),
            };
            let trained = parameters.list().iter().enumerate().filter(|(_, parameter)| parameter.trained);
            return OptimizerShards { by_rank: vec![trained.map(whole).collect()], own: 0 };
        }
        let sizes = parameters.list().iter().map(|parameter| parameter.weight.elements());
        let slots: Vec<_> = layout.first_uses(parameters).into_iter().zip(sizes).enumerate().collect();
        let shards_of = |rank: usize| {
            let shard = |(parameter, (slot, elements)): &(usize, (Option<BucketSlot>, usize))| {
                let slot = (*slot)?;
                let range = owned(*elements, slot.offset, layout.elements[slot.bucket], ranks, rank);
                let shard = Shard::along(Axis::Data, range);
                (!shard.is_empty()).then_some(ParameterShard { parameter: *parameter, shard })
            };
            slots.iter().filter_map(shard).collect()
        };
        OptimizerShards { by_rank: (0..ranks).map(shards_of).collect(), own: rank }
    }

    /// Returns whether ranks own different parts.
    pub fn is_sharded(&self) -> bool {
        self.by_rank.len() > 1
    }

    /// This rank's shards, in the order of the parameters.
    pub fn own(&self) -> &[ParameterShard] {
        &self.by_rank[self.own]
    }

    /// The shards of each rank; a single entry if every rank owns everything.
    pub fn by_rank(&self) -> &[Vec<ParameterShard>] {
        &self.by_rank
    }

    /// The range of a parameter's elements that `rank` owns; empty if it owns none. If every rank owns
    /// everything, rank 0 stands for all.
    pub fn range(&self, rank: usize, parameter: usize) -> Range<usize> {
        let shards = self.by_rank.get(rank).map_or(&[][..], Vec::as_slice);
        let position = shards.binary_search_by_key(&parameter, |shard| shard.parameter);
        position.map_or(0..0, |index| shards[index].shard.range.clone())
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
            let layout = BucketLayout::of(&parameters, DType::F32, end, ranks);
            let weights = by_unit.then(|| WeightLayout::new(&parameters, &layout, ranks));
            let shards = OptimizerShards::new(1, &parameters, &layout, ranks, ranks - 1);
            prop_assert_eq!(shards.by_rank().len(), ranks);
            prop_assert_eq!(shards.own(), &*shards.by_rank()[ranks - 1]);
            prop_assert_eq!(shards.is_sharded(), ranks > 1);
            for (parameter, size) in sizes.iter().enumerate() {
                // Each rank's part begins where the previous one ends.
                let mut end = 0;
                for rank in 0..ranks {
                    let range = shards.range(rank, parameter);
                    let held = weights.as_ref().map(|weights| weights.range(rank, parameter));
                    let is_owned = |held: &Range<usize>| *held == range || held.len() + range.len() == 0;
                    prop_assert!(held.iter().all(is_owned), "{held:?} and {range:?}");
                    let mut listed = shards.by_rank()[rank].iter();
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
            // A rank owns the same part of a parameter in the gradients of all its uses.
            for used in parameters.uses() {
                let slot = layout.slots[used.id.0 as usize];
                for rank in 0..ranks {
                    let range = shards.range(rank, used.parameter.0);
                    if !range.is_empty() {
                        let own = layout.elements[slot.bucket] / ranks;
                        let (start, end) = (slot.offset + range.start, slot.offset + range.end);
                        prop_assert!(rank * own <= start && end <= (rank + 1) * own);
                    }
                }
            }
            // Shards are in order, and no rank has more than its part of the buckets of first uses.
            for owned in shards.by_rank() {
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
