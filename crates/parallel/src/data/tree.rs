//! The sum over ranks in a fixed order: where ranks reach each other's memory, in one pass over it ([`DataPlane::sum_shared`]);
//! elsewhere exchange shards, add them up in tree order in one pass, gather. The bits are the same.
//!
//! Everything is enqueued on the stream that is given.

use collective::{DataPlane, SharedSum};
use device::StreamKind;
use tensor::{Tensor, ops};

use crate::error::Result;

/// Replaces `bucket` on every rank by the sum over ranks, added as a balanced binary tree in rank order and
/// rounded to its dtype at every node.
///
/// `bucket` divides into as many equal shards as there are ranks; `scratch`, as long, may be overwritten.
/// `alone` says that the device has nothing else to do meanwhile: no bit depends on it.
pub fn tree_all_reduce(
    plane: &mut dyn DataPlane,
    bucket: &Tensor,
    scratch: &Tensor,
    alone: bool,
    stream: StreamKind,
) -> Result<()> {
    if plane.world_size() == 1 || plane.sum_shared(&shared(bucket, scratch, true, alone), stream)? {
        return Ok(());
    }
    exchange_and_add(plane, bucket, scratch, stream)?;
    Ok(plane.all_gather(shard(plane, bucket, plane.rank())?.region(), bucket.region(), stream)?)
}

/// The same for this rank's shard of `bucket` alone; the rest of it stays this rank's own.
pub fn tree_reduce_scatter(
    plane: &mut dyn DataPlane,
    bucket: &Tensor,
    scratch: &Tensor,
    alone: bool,
    stream: StreamKind,
) -> Result<()> {
    if plane.world_size() == 1 || plane.sum_shared(&shared(bucket, scratch, false, alone), stream)? {
        return Ok(());
    }
    exchange_and_add(plane, bucket, scratch, stream)
}

fn shared<'a>(bucket: &'a Tensor, scratch: &'a Tensor, everywhere: bool, alone: bool) -> SharedSum<'a> {
    let (region, scratch) = (bucket.region(), scratch.region());
    SharedSum { region, scratch, dtype: bucket.dtype(), everywhere, alone }
}

/// This rank's shard of the sum, into its place.
fn exchange_and_add(
    plane: &mut dyn DataPlane,
    bucket: &Tensor,
    scratch: &Tensor,
    stream: StreamKind,
) -> Result<()> {
    let (ranks, rank) = (plane.world_size(), plane.rank());
    let own = shard(plane, bucket, rank)?;
    let peers = || (0..ranks).filter(|peer| *peer != rank);
    let outgoing = peers().map(|peer| Ok((peer, shard(plane, bucket, peer)?))).collect::<Result<Vec<_>>>()?;
    let incoming =
        peers().map(|peer| Ok((peer, shard(plane, scratch, peer)?))).collect::<Result<Vec<_>>>()?;
    let sends: Vec<_> = outgoing.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect();
    let receives: Vec<_> = incoming.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect();
    plane.exchange(&sends, &receives, stream)?;
    let mut sums = incoming.into_iter().map(|(_, tensor)| tensor).collect::<Vec<_>>();
    sums.insert(rank, own.clone());
    Ok(ops::tree::into_on(&own, &sums, stream)?)
}

/// Rank `index`'s part of a tensor that divides into as many as there are ranks.
pub(super) fn shard(plane: &dyn DataPlane, tensor: &Tensor, index: usize) -> Result<Tensor> {
    let elements = tensor.elements() / plane.world_size();
    Ok(tensor.view(index * elements, [elements])?)
}
