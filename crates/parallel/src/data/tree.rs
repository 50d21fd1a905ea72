//! The sum over ranks in a fixed order: exchange shards, add them up in tree order, gather.

use collective::DataPlane;
use device::StreamKind;
use tensor::{Tensor, ops};

use crate::error::Result;

/// Replaces `bucket` on every rank by the sum over ranks, added as a balanced binary tree in rank order and
/// rounded to its dtype at every node.
///
/// `bucket` divides into as many equal shards as there are ranks; `scratch`, as long, is overwritten.
pub fn tree_all_reduce(
    plane: &mut dyn DataPlane,
    bucket: &Tensor,
    scratch: &Tensor,
    stream: StreamKind,
) -> Result<()> {
    let (ranks, rank) = (plane.world_size(), plane.rank());
    if ranks == 1 {
        return Ok(());
    }
    let shard = bucket.elements() / ranks;
    let part_of = |tensor: &Tensor, index: usize| tensor.view(index * shard, [shard]);
    let own = part_of(bucket, rank)?;
    let peers = || (0..ranks).filter(|peer| *peer != rank);
    let outgoing = peers().map(|peer| Ok((peer, part_of(bucket, peer)?))).collect::<Result<Vec<_>>>()?;
    let incoming = peers().map(|peer| Ok((peer, part_of(scratch, peer)?))).collect::<Result<Vec<_>>>()?;
    let sends: Vec<_> = outgoing.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect();
    let receives: Vec<_> = incoming.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect();
    plane.exchange(&sends, &receives, stream)?;
    let mut sums = incoming.into_iter().map(|(_, tensor)| tensor).collect::<Vec<_>>();
    sums.insert(rank, own.clone());
    let mut stride = 1;
    while stride < ranks {
        for left in (0..ranks - stride).step_by(2 * stride) {
            ops::add::into(&sums[left], &sums[left + stride])?;
        }
        stride *= 2;
    }
    if rank != 0 {
        own.copy_from(&sums[0])?;
    }
    plane.all_gather(own.region(), bucket.region(), stream)?;
    Ok(())
}
