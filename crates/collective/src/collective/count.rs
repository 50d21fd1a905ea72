//! Bytes that a collective moves between ranks, counted as the host transports move them. Other backends may
//! move fewer.

use device::Region;

use super::Collective;
use crate::call::CallKind;
use crate::host::broadcast_tree;
use crate::shards::ByteShards;
use crate::traffic::Moved;

impl Collective<Region<'_>> {
    /// Calls `record` with each kind of call and the bytes that rank `rank` of `size` moves in it.
    pub(crate) fn count(&self, rank: usize, size: usize, mut record: impl FnMut(CallKind, Moved)) {
        let gathered = |shard: usize| gather(ByteShards::equal(shard, size), rank, size);
        let moved = match self {
            Collective::AllReduce { region, dtype } => {
                let shards = ByteShards::of_elements(region.bytes, dtype.bytes(), size);
                let scattered = gather(shards, rank, size).reversed();
                scattered + scattered.reversed()
            }
            Collective::ReduceScatter { output, .. } => gathered(output.bytes).reversed(),
            Collective::AllGather { input, .. } => gathered(input.bytes),
            Collective::Broadcast { root, region } => {
                let (parent, children) = broadcast_tree(rank, size, *root);
                let bytes = region.bytes as u64;
                Moved { sent: bytes * children.len() as u64, received: parent.map_or(0, |_| bytes) }
            }
            Collective::Barrier => Moved::default(),
            Collective::Send { .. }
            | Collective::Receive { .. }
            | Collective::Exchange { .. }
            | Collective::ExchangeShared { .. } => {
                let (sends, receives) = self.messages();
                let total =
                    |messages: &[(usize, Region<'_>)]| messages.iter().map(|(_, r)| r.bytes as u64).sum();
                Moved { sent: total(&sends), received: total(&receives) }
            }
            Collective::SumShared { sums, tree, .. } => {
                // Shards are exchanged; if every rank gets the whole sum, they are also gathered.
                let own = tree.parts_of(rank).len();
                let sent = own * (size - 1);
                let received = tree.parts() - own;
                for sum in sums {
                    let shard = sum.region.bytes / size;
                    let exchanged =
                        Moved { sent: (shard * sent) as u64, received: (shard * received) as u64 };
                    record(CallKind::Exchange, exchanged);
                    if sum.everywhere {
                        record(CallKind::AllGather, gathered(shard));
                    }
                }
                return;
            }
        };
        record(self.kind(), moved);
    }
}

/// Returns the bytes that a rank sends and receives in an all-gather of shards.
fn gather(shards: ByteShards, rank: usize, size: usize) -> Moved {
    let own = shards.range(rank).len();
    Moved { sent: own as u64 * (size as u64 - 1), received: (shards.total() - own) as u64 }
}
