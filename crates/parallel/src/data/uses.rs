//! What data parallelism does over a plane, so that its connections are made before the first step and no others are.

use collective::Use;
use device::DType;

use super::reduction::Reduction;

/// The collectives and peers of a step of `ranks` ranks whose gradients are of `dtype`; `sharded`: the optimizer's state is
/// divided. None for one rank.
pub fn uses(reduction: Reduction, sharded: bool, dtype: DType, ranks: usize) -> Vec<Use> {
    if ranks == 1 {
        return Vec::new();
    }
    // The losses are gathered, or added, also where gradients are not.
    let mut uses = match (reduction, sharded) {
        (Reduction::Tree, _) => vec![Use::AllGather],
        // Large sums go around the same ring as a gather, small ones perhaps another way: the warm-up is of small ones.
        (Reduction::Library, false) => {
            vec![Use::AllReduce(dtype), Use::AllReduce(DType::F32), Use::AllGather]
        }
        (Reduction::Library, true) => vec![Use::ReduceScatter(dtype), Use::AllReduce(DType::F32)],
    };
    if sharded && reduction == Reduction::Tree {
        // The sums for the norm.
        uses.push(Use::AllReduce(DType::F32));
    }
    if sharded || reduction == Reduction::Tree {
        uses.extend((0..ranks).map(Use::Peer));
    }
    uses
}
