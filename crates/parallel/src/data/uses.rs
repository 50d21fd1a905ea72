//! What data parallelism does over a plane, so that its connections are made before the first step and no
//! others are.

use collective::CollectiveUse;
use device::DType;

use super::reduction::Reduction;

/// What decides it.
#[derive(Clone, Copy, Debug)]
pub struct Uses {
    /// Who adds.
    pub reduction: Reduction,
    /// Whether the optimizer's state is divided.
    pub sharded: bool,
    /// Of gradients.
    pub dtype: DType,
    /// Whether ranks reach each other's memory for what the tree and the optimizer's parts exchange.
    pub direct: bool,
}

impl Uses {
    /// The collectives and peers of a step of `ranks` ranks; none for one rank.
    pub fn of(self, ranks: usize) -> Vec<CollectiveUse> {
        if ranks == 1 {
            return Vec::new();
        }
        let Uses { reduction, sharded, dtype, direct } = self;
        // The losses are gathered, or added, also where gradients are not.
        let mut uses = match (reduction, sharded) {
            (Reduction::Tree, _) if direct => Vec::new(),
            (Reduction::Tree, _) => vec![CollectiveUse::AllGather],
            // Large sums go around the same ring as a gather, small ones perhaps another way: those are what
            // is warmed up.
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
            // The sums for the norm.
            uses.push(CollectiveUse::AllReduce(DType::F32));
        }
        if !direct && (sharded || reduction == Reduction::Tree) {
            uses.extend((0..ranks).map(CollectiveUse::Peer));
        }
        uses
    }
}
