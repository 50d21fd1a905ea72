//! Traffic as the host transports count it, for transports that leave the transfers to a library or transfer
//! nothing.

use device::{DType, Region};

use crate::call::Operation;
use crate::host::broadcast_tree;
use crate::rank_tree::RankTree;
use crate::shards::ByteShards;
use crate::traffic::Meter;

/// Counts the traffic of one rank of a group.
#[derive(Debug)]
pub(crate) struct Tally {
    rank: usize,
    world_size: usize,
    meter: Meter,
}

/// Direction of shards: this rank's shard to all others, or their shards to this rank.
#[derive(Clone, Copy)]
enum Direction {
    Gather,
    Scatter,
}

impl Tally {
    pub(crate) fn new(rank: usize, world_size: usize, meter: Meter) -> Self {
        Tally { rank, world_size, meter }
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Counts a call without operand.
    pub(crate) fn nothing(&mut self, operation: Operation) {
        self.meter.record(operation, 0, 0);
    }

    pub(crate) fn all_reduce(&mut self, bytes: usize, dtype: DType) {
        let shards = ByteShards::of_elements(bytes, dtype.bytes(), self.world_size);
        self.shards(Operation::AllReduce, shards, &[Direction::Scatter, Direction::Gather]);
    }

    /// Counts a call; `part` is the bytes of one rank's shard.
    pub(crate) fn reduce_scatter(&mut self, part: usize) {
        let shards = ByteShards::equal(part, self.world_size);
        self.shards(Operation::ReduceScatter, shards, &[Direction::Scatter]);
    }

    /// Counts a call; `part` is the bytes of one rank's shard.
    pub(crate) fn all_gather(&mut self, part: usize) {
        let shards = ByteShards::equal(part, self.world_size);
        self.shards(Operation::AllGather, shards, &[Direction::Gather]);
    }

    pub(crate) fn broadcast(&mut self, root: usize, bytes: usize) {
        let (parent, children) = broadcast_tree(self.rank, self.world_size, root);
        let bytes = bytes as u64;
        let received = parent.map_or(0, |_| bytes);
        self.meter.record(Operation::Broadcast, bytes * children.len() as u64, received);
    }

    pub(crate) fn point_to_point(
        &mut self,
        operation: Operation,
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
    ) {
        let total = |regions: &[(usize, Region<'_>)]| regions.iter().map(|(_, r)| r.bytes as u64).sum();
        self.meter.record(operation, total(sends), total(receives));
    }

    /// Counts a sum by an exchange of shards of the parts of a tree, with a gather if `everywhere`. `shard`
    /// is the bytes of one rank's shard.
    pub(crate) fn sum_shared(&mut self, shard: usize, tree: &RankTree, everywhere: bool) {
        let own = tree.parts_of(self.rank).len();
        let (sent, received) = (own * (self.world_size - 1), tree.parts() - own);
        self.meter.record(Operation::Exchange, (shard * sent) as u64, (shard * received) as u64);
        if everywhere {
            self.all_gather(shard);
        }
    }

    /// Counts a call whose rounds each move shards between this rank and all others.
    fn shards(&mut self, operation: Operation, shards: ByteShards, rounds: &[Direction]) {
        let own = shards.range(self.rank).len();
        let others = (shards.total() - own) as u64;
        let own = own as u64 * (self.world_size as u64 - 1);
        let (mut sent, mut received) = (0, 0);
        for direction in rounds {
            let (out, back) = match direction {
                Direction::Gather => (own, others),
                Direction::Scatter => (others, own),
            };
            sent += out;
            received += back;
        }
        self.meter.record(operation, sent, received);
    }
}
