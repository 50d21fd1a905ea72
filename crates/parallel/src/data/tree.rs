//! The sum over ranks in a fixed order: where ranks reach each other's memory, in one pass over it
//! ([`DataPlane::sum_shared`]); elsewhere exchange shards, add them up in tree order in one pass, gather. The
//! bits are the same.
//!
//! Everything is enqueued on the stream that is given.

use collective::{DataPlane, SharedSum};
use device::StreamKind;
use tensor::{Tensor, ops};

use crate::error::Result;

/// A bucket that is replaced by the sum over ranks, added as a balanced binary tree in rank order and rounded
/// to its dtype at every node.
///
/// It divides into as many equal shards as there are ranks.
#[derive(Clone, Copy, Debug)]
pub struct TreeSum<'a> {
    /// What is summed.
    pub bucket: &'a Tensor,
    /// As long; it may be overwritten, and the scratch of others too.
    pub scratch: &'a Tensor,
    /// Whether every rank gets all of it, or its own shard alone while the rest stays the rank's own.
    pub everywhere: bool,
}

/// Takes sums over ranks, in their order. `alone` says that the device has nothing else to do meanwhile: no
/// bit depends on it.
pub fn tree_sums(
    plane: &mut dyn DataPlane,
    sums: &[TreeSum<'_>],
    alone: bool,
    stream: StreamKind,
) -> Result<()> {
    let shared: Vec<_> = sums.iter().map(TreeSum::shared).collect();
    if plane.world_size() == 1 || plane.sum_shared(&shared, alone, stream)? {
        return Ok(());
    }
    for TreeSum { bucket, scratch, everywhere } in sums {
        exchange_and_add(plane, bucket, scratch, stream)?;
        if *everywhere {
            plane.all_gather(shard(plane, bucket, plane.rank())?.region(), bucket.region(), stream)?;
        }
    }
    Ok(())
}

impl TreeSum<'_> {
    fn shared(&self) -> SharedSum<'_> {
        let (region, scratch) = (self.bucket.region(), self.scratch.region());
        SharedSum { region, scratch, dtype: self.bucket.dtype(), everywhere: self.everywhere }
    }
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
