//! Sums over ranks in a fixed order.
//!
//! With peer access, ranks sum in one pass over each other's memory ([`DataPlane::sum_shared`]). Without it,
//! they exchange shards, sum them in tree order in one pass, and gather the sums. The bits are the same.

use device::StreamKind;
use tensor::{Tensor, ops};

use crate::data::DataPlane;
use crate::error::Result;
use crate::peer_access::SharedSum;

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
        let own = shard(plane, bucket, plane.rank())?;
        exchange_and_add(plane, bucket, (&own, &own), scratch, stream)?;
        if *everywhere {
            plane.all_gather(own.region(), bucket.region(), stream)?;
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

/// Writes this rank's shard of the sum of `input` over ranks to `output`, on `stream`, by the tree of
/// [`TreeSum`]. `scratch` is a workspace as long as `input`. Errors: a failed collective.
pub(crate) fn scatter_sum(
    plane: &mut dyn DataPlane,
    (input, output): (&Tensor, &Tensor),
    scratch: &Tensor,
    stream: StreamKind,
) -> Result<()> {
    let own = shard(plane, scratch, plane.rank())?;
    own.copy_from_on(&shard(plane, input, plane.rank())?, stream)?;
    exchange_and_add(plane, input, (&own, output), scratch, stream)
}

/// Sums this rank's shard: its own part, which may be overwritten, and those of the other ranks.
fn exchange_and_add(
    plane: &mut dyn DataPlane,
    input: &Tensor,
    (own, output): (&Tensor, &Tensor),
    scratch: &Tensor,
    stream: StreamKind,
) -> Result<()> {
    let (ranks, rank) = (plane.world_size(), plane.rank());
    let peers = || (0..ranks).filter(|peer| *peer != rank);
    let outgoing = peers().map(|peer| Ok((peer, shard(plane, input, peer)?))).collect::<Result<Vec<_>>>()?;
    let incoming =
        peers().map(|peer| Ok((peer, shard(plane, scratch, peer)?))).collect::<Result<Vec<_>>>()?;
    let sends: Vec<_> = outgoing.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect();
    let receives: Vec<_> = incoming.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect();
    plane.exchange(&sends, &receives, stream)?;
    let mut sums = incoming.into_iter().map(|(_, tensor)| tensor).collect::<Vec<_>>();
    sums.insert(rank, own.clone());
    Ok(ops::tree::into_on(output, &sums, stream)?)
}

/// Returns shard `index` of a tensor that divides into one per rank.
///
/// # Errors
/// A rank that the plane does not have.
pub fn shard(plane: &dyn DataPlane, tensor: &Tensor, index: usize) -> Result<Tensor> {
    let elements = tensor.elements() / plane.world_size();
    Ok(tensor.view(index * elements, [elements])?)
}
