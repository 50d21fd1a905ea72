//! Sums over ranks in a fixed order.
//!
//! With peer access, ranks sum in one pass over each other's memory ([`Collective::SumShared`]). Without it,
//! they exchange shards, sum them in tree order in one pass, and gather the sums. The bits are the same. A
//! rank with several parts in the tree ([`RankTree`]) sends each of them.

use device::{Region, StreamKind};
use tensor::{Tensor, ops};

use crate::collective::Collective;
use crate::error::Result;
use crate::peer_access::SharedSum;
use crate::process_group::ProcessGroup;
use crate::rank_tree::RankTree;

/// A sum over ranks in the order of a [`RankTree`], rounded to the dtype at every node. Each part divides
/// into one equal shard per rank.
///
/// A shard's owner receives the shard of every part of the other ranks. A rank with n parts of b bytes
/// therefore sends n · b · (ranks - 1) / ranks bytes; with one part, as much as in any reduce-scatter. If
/// every rank gets the sum, each sends b · (ranks - 1) / ranks bytes more.
#[derive(Clone, Copy, Debug)]
pub struct TreeSum<'a> {
    /// This rank's parts, in order, all of the same length. The sum replaces the first; the others may be
    /// overwritten.
    pub parts: &'a [Tensor],
    /// Workspace of [`RankTree::scratch_elements`] elements, overwritten. Several sums may share it.
    pub scratch: &'a Tensor,
    /// Whether every rank gets the whole sum; if false, each rank gets only its own shard.
    pub everywhere: bool,
}

/// Runs sums over ranks one after the other on `stream`. `alone`: the device has no other work meanwhile.
/// Affects speed, never results.
///
/// # Errors
/// A collective failed, or the number of parts is not this rank's number in `tree`.
pub fn tree_sums(
    group: &ProcessGroup,
    sums: &[TreeSum<'_>],
    tree: &RankTree,
    alone: bool,
    stream: StreamKind,
) -> Result<()> {
    if group.world_size() == 1 {
        return Ok(());
    }
    let shared = sums.iter().filter_map(TreeSum::shared).collect();
    if group.try_run(Collective::SumShared { sums: shared, tree: tree.clone(), alone }, stream)? {
        return Ok(());
    }
    for TreeSum { parts, scratch, everywhere } in sums {
        let Some(first) = parts.first() else { continue };
        let own = shard(group, first, group.rank())?;
        exchange_and_add(group, parts, &own, (scratch, tree), stream)?;
        if *everywhere {
            let input = own.region();
            let output = first.region();
            group.run(Collective::AllGather { input, output }, stream)?;
        }
    }
    Ok(())
}

impl TreeSum<'_> {
    fn shared(&self) -> Option<SharedSum<Region<'_>>> {
        let first = self.parts.first()?;
        let scratch = self.scratch.region();
        let region = first.region();
        let dtype = first.dtype();
        Some(SharedSum { region, scratch, dtype, everywhere: self.everywhere })
    }
}

/// Writes this rank's shard of the sum of `input` over ranks to `output`, on `stream`, in the order of the
/// balanced tree. `scratch` is a workspace as long as `input`.
pub(crate) fn scatter_sum(
    group: &ProcessGroup,
    (input, output): (&Tensor, &Tensor),
    scratch: &Tensor,
    stream: StreamKind,
) -> Result<()> {
    let rank = group.rank();
    let tree = RankTree::balanced(group.world_size());
    let own = shard(group, scratch, rank)?;
    own.copy_from_on(&shard(group, input, rank)?, stream)?;
    let incoming = exchange(group, std::slice::from_ref(input), (scratch, &tree), stream)?;
    add(output, &incoming, (rank, &[own]), &tree, stream)
}

/// Sends each rank its shard of `input`, and returns all ranks' shards for this rank in rank order. This
/// rank's own shard is a view of `input`; the others lie in `scratch`, as long as `input`.
pub(crate) fn exchange_parts(
    group: &ProcessGroup,
    input: &Tensor,
    scratch: &Tensor,
    stream: StreamKind,
) -> Result<Vec<Tensor>> {
    let rank = group.rank();
    let tree = RankTree::balanced(group.world_size());
    let mut parts = exchange(group, std::slice::from_ref(input), (scratch, &tree), stream)?;
    parts[rank] = shard(group, input, rank)?;
    Ok(parts)
}

/// Sums this rank's shard of all parts into `output`, which is the shard of its first part. Its own shards
/// may be overwritten.
fn exchange_and_add(
    group: &ProcessGroup,
    parts: &[Tensor],
    output: &Tensor,
    (scratch, tree): (&Tensor, &RankTree),
    stream: StreamKind,
) -> Result<()> {
    let rank = group.rank();
    let own = parts.iter().map(|part| shard(group, part, rank)).collect::<Result<Vec<_>>>()?;
    let incoming = exchange(group, parts, (scratch, tree), stream)?;
    add(output, &incoming, (rank, &own), tree, stream)
}

/// Adds all parts of a shard into `output`. `own` replaces the parts of `rank` in `incoming`.
fn add(
    output: &Tensor,
    incoming: &[Tensor],
    (rank, own): (usize, &[Tensor]),
    tree: &RankTree,
    stream: StreamKind,
) -> Result<()> {
    let mut all = incoming.to_vec();
    all.splice(tree.parts_of(rank), own.iter().cloned());
    Ok(ops::tree::into_on(output, &all, tree.tree(), stream)?)
}

/// Sends each rank its shard of this rank's parts, and receives this rank's shard of the others' parts.
/// Returns one view of `scratch` per part of all ranks; the views of this rank's own parts are not written.
fn exchange(
    group: &ProcessGroup,
    parts: &[Tensor],
    (scratch, tree): (&Tensor, &RankTree),
    stream: StreamKind,
) -> Result<Vec<Tensor>> {
    let ranks = group.world_size();
    let rank = group.rank();
    let elements = parts.first().map_or(0, Tensor::elements) / ranks;
    let slot = |part: usize| Ok(scratch.view(part * elements, [elements])?);
    let slots = (0..tree.parts()).map(slot).collect::<Result<Vec<_>>>()?;
    let mut outgoing = Vec::new();
    let mut receives = Vec::new();
    for peer in (0..ranks).filter(|peer| *peer != rank) {
        for part in parts {
            outgoing.push((peer, shard(group, part, peer)?));
        }
        receives.extend(tree.parts_of(peer).map(|part| (peer, slots[part].region())));
    }
    let sends = outgoing.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect();
    group.run(Collective::Exchange { sends, receives }, stream)?;
    Ok(slots)
}

/// Sends each rank its shard of `part`, and receives this rank's shard from the first `senders` ranks, in
/// rank order; the others send nothing. Received shards lie in `scratch`, a workspace as long as `part`. This
/// rank's own shard is a view of `part`.
pub fn exchange_shards(
    group: &ProcessGroup,
    part: &Tensor,
    senders: usize,
    scratch: &Tensor,
    stream: StreamKind,
) -> Result<Vec<Tensor>> {
    let ranks = group.world_size();
    let rank = group.rank();
    let others = |count: usize| (0..count).filter(move |peer| *peer != rank);
    let sent = if rank < senders { ranks } else { 0 };
    let outgoing = others(sent).map(|peer| Ok((peer, shard(group, part, peer)?)));
    let outgoing = outgoing.collect::<Result<Vec<_>>>()?;
    let from = |peer: usize| shard(group, if peer == rank { part } else { scratch }, peer);
    let shards = (0..senders).map(from).collect::<Result<Vec<_>>>()?;
    let sends = outgoing.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect();
    let receives = others(senders).map(|peer| (peer, shards[peer].region())).collect();
    group.run(Collective::Exchange { sends, receives }, stream)?;
    Ok(shards)
}

/// Returns shard `index` of a tensor that divides into one shard per rank.
///
/// # Errors
/// The group has no such rank.
pub fn shard(group: &ProcessGroup, tensor: &Tensor, index: usize) -> Result<Tensor> {
    let elements = tensor.elements() / group.world_size();
    Ok(tensor.view(index * elements, [elements])?)
}
