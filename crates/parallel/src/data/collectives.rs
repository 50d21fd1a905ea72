//! Lists the collectives of data parallelism, so that exactly their connections are made before the first
//! step.

use collective::Collective;
use device::DType;

use super::options::Reduction;
use super::zero::{shards_gradients, shards_optimizer};

/// Settings that determine the collectives of data-parallel ranks.
#[derive(Clone, Copy, Debug)]
pub struct DataCollectives {
    /// How gradients are added over ranks.
    pub reduction: Reduction,
    /// ZeRO stage; from 1 on, optimizer state is sharded over ranks.
    pub zero_stage: u32,
    /// Dtype of the gradients.
    pub dtype: DType,
    /// Whether ranks access each other's memory for sums and updated weights.
    pub peer_access: bool,
    /// Whether the model has running statistics, which are gathered.
    pub statistics: bool,
    /// Whether all ranks run equally many micro-batches.
    pub even: bool,
}

impl DataCollectives {
    /// Returns the collectives and peers of a step on `ranks` ranks along
    /// [`Axis::Data`](collective::Axis::Data); empty for one rank.
    pub fn uses(self, ranks: usize) -> Vec<Collective<()>> {
        if ranks == 1 {
            return Vec::new();
        }
        let DataCollectives { reduction, zero_stage, dtype, peer_access, statistics, even } = self;
        let sharded = shards_optimizer(zero_stage);
        // With sharded gradients, gradients are exchanged; losses and sharded weights are gathered.
        let in_shards = shards_gradients(zero_stage);
        // Losses are gathered or summed even if gradients are not.
        let mut uses = match (reduction, sharded) {
            (Reduction::Tree, _) if peer_access => Vec::new(),
            (Reduction::Tree, _) => vec![Collective::all_gather()],
            // Large sums use the same ring as a gather, but small ones may use another algorithm, so both are
            // warmed up.
            (Reduction::Library, false) => {
                vec![
                    Collective::all_reduce(dtype),
                    Collective::all_reduce(DType::F32),
                    Collective::all_gather(),
                ]
            }
            (Reduction::Library, true) => {
                vec![Collective::reduce_scatter(dtype), Collective::all_reduce(DType::F32)]
            }
        };
        if sharded && reduction == Reduction::Tree {
            // Chunk sums of the gradient norm.
            uses.push(Collective::all_reduce(DType::F32));
        }
        if (in_shards || (statistics && even)) && !uses.contains(&Collective::all_gather()) {
            uses.push(Collective::all_gather());
        }
        let exchanges = !peer_access && (sharded || reduction == Reduction::Tree);
        if exchanges || (statistics && (in_shards || !even)) {
            uses.extend((0..ranks).map(Collective::peer));
        }
        uses
    }
}
