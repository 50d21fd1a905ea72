//! The collectives of data parallelism, so that exactly their connections are made before the first step.

use collective::CollectiveUse;
use device::DType;

use super::options::Reduction;
use super::zero::shards_optimizer;

/// The settings that decide which collectives data-parallel ranks use.
#[derive(Clone, Copy, Debug)]
pub struct DataCollectives {
    /// How gradients are added over ranks.
    pub reduction: Reduction,
    /// ZeRO stage: from 1 on, ranks own different parts of the optimizer state.
    pub zero_stage: u32,
    /// Type of the gradients.
    pub dtype: DType,
    /// True if ranks have access to each other's memory for sums and for updated weights.
    pub peer_access: bool,
}

impl DataCollectives {
    /// The collectives and peers of a step on `ranks` ranks along [`Axis::Data`](crate::Axis::Data); none for
    /// one rank.
    pub fn uses(self, ranks: usize) -> Vec<CollectiveUse> {
        if ranks == 1 {
            return Vec::new();
        }
        let DataCollectives { reduction, zero_stage, dtype, peer_access } = self;
        let sharded = shards_optimizer(zero_stage);
        // The losses are gathered, or added, also where gradients are not.
        let mut uses = match (reduction, sharded) {
            (Reduction::Tree, _) if peer_access => Vec::new(),
            (Reduction::Tree, _) => vec![CollectiveUse::AllGather],
            // Large sums go around the same ring as a gather, small ones perhaps another way: these are
            // warmed up.
            (Reduction::Library, false) => {
                vec![
                    CollectiveUse::AllReduce(dtype),
                    CollectiveUse::AllReduce(DType::F32),
                    CollectiveUse::AllGather,
                ]
            }
            (Reduction::Library, true) => {
                vec![CollectiveUse::ReduceScatter(dtype), CollectiveUse::AllReduce(DType::F32)]
            }
        };
        if sharded && reduction == Reduction::Tree {
            // Sums for the norm.
            uses.push(CollectiveUse::AllReduce(DType::F32));
        }
        if !peer_access && (sharded || reduction == Reduction::Tree) {
            uses.extend((0..ranks).map(CollectiveUse::Peer));
        }
        uses
    }
}
