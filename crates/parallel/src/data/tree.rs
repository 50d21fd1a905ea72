//! Sums over ranks in a fixed order.
//!
//! With peer access, ranks sum in one pass over each other's memory ([`DataPlane::sum_shared`]). Without it,
//! they exchange shards, sum them in tree order in one pass, and gather the sums. The bits are the same.

use collective::{DataPlane, SharedSum};
use device::StreamKind;
use tensor::{Tensor, ops};

use crate::error::Result;

/// A bucket to be replaced by its sum over ranks, a balanced binary tree in rank order that is rounded to the
/// dtype at every node. The bucket divides into one equal shard per rank.
#[derive(Clone, Copy, Debug)]
pub struct TreeSum<'a> {
    /// The bucket that is summed in place.
    pub bucket: &'a Tensor,
    /// Workspace of the same length, which is overwritten; several sums may share it.
    pub scratch: &'a Tensor,
    /// Whether every rank gets the whole sum; if false, each gets only its own shard.
    pub everywhere: bool,
}

/// Sums buckets over ranks, in their order, on `stream`. `alone` says that the device has no other work
/// meanwhile; it affects speed, never results.
///
/// # Errors
/// A failed collective.
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

/// Sums this rank's shard in place.
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

/// Returns shard `index` of a tensor that divides into one per rank.
pub(super) fn shard(plane: &dyn DataPlane, tensor: &Tensor, index: usize) -> Result<Tensor> {
    let elements = tensor.elements() / plane.world_size();
    Ok(tensor.view(index * elements, [elements])?)
}
