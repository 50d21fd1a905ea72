//! The control channel and a backend for host memory, over any [`Link`](crate::link::Link).

mod backend;
mod control;
mod region;
mod shards;
mod transfer;

pub(crate) use backend::HostBackend;
pub(crate) use control::HostControl;
pub(crate) use region::copy;
pub(crate) use transfer::Transfers;

use crate::call::{Call, Signature};
use crate::caller::Caller;
use crate::error::{CollectiveError, Result};
use crate::link::Link;
use crate::payload::PayloadPool;

/// Announces that this rank begins a collective, and checks that no rank has failed.
///
/// # Errors
/// A rank has failed, or makes another call.
pub(crate) fn begin<L: Link>(link: &mut L, signature: &Signature) -> Result<Call> {
    let rank = link.world_rank(link.rank());
    let call = signature.call;
    if let Some(failure) = link.failure() {
        return Err(CollectiveError::failed(rank, call, failure));
    }
    match link.begin(signature) {
        Ok(()) => Ok(call),
        Err((peer, theirs)) => {
            Err(CollectiveError::mismatch(rank, *signature, link.world_rank(peer), theirs))
        }
    }
}

/// Checks that the other ranks passed the same groups to a split.
pub(crate) fn same_groups<L: Link>(
    link: &mut L,
    pool: &mut PayloadPool,
    caller: Caller,
    groups: &[Vec<usize>],
) -> Result<()> {
    let rank = link.rank();
    let mine = format!("{groups:?}");
    let mut theirs = vec![Vec::new(); link.world_size()];
    let mut transfers = Transfers::new(caller.call);
    for (peer, bytes) in theirs.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
        transfers.send_bytes(peer, Signature::new(caller.call), mine.as_bytes());
        transfers.receive_bytes(peer, Signature::new(caller.call), bytes);
    }
    transfers.run(link, pool)?;
    let other = (0..theirs.len()).find(|peer| *peer != rank && theirs[*peer] != mine.as_bytes());
    other.map_or(Ok(()), |peer| {
        let theirs = String::from_utf8_lossy(&theirs[peer]);
        caller.refuse(format!("groups {mine}, but rank {} has {theirs}", link.world_rank(peer)))
    })
}

/// Returns once every rank has called it, after log₂(world size) rounds of messages to ranks at distance 1,
/// 2, 4, … (the dissemination barrier of Hensgen, Finkel and Manber, 1988).
pub(crate) fn barrier<L: Link>(link: &mut L, pool: &mut PayloadPool, signature: Signature) -> Result<()> {
    let rank = link.rank();
    let world_size = link.world_size();
    let mut nothing = Vec::new();
    let mut distance = 1;
    while distance < world_size {
        let mut transfers = Transfers::new(signature.call);
        transfers.send_bytes((rank + distance) % world_size, signature, &[]);
        transfers.receive_bytes((rank + world_size - distance) % world_size, signature, &mut nothing);
        transfers.run(link, pool)?;
        distance *= 2;
    }
    Ok(())
}

/// Returns the parent and children of a rank in the binomial tree of a broadcast; the child with the largest
/// subtree comes first.
pub(crate) fn broadcast_tree(rank: usize, world_size: usize, root: usize) -> (Option<usize>, Vec<usize>) {
    let relative = (rank + world_size - root) % world_size;
    let absolute = |relative: usize| (relative + root) % world_size;
    let lowest =
        if relative == 0 { world_size.next_power_of_two() } else { relative & relative.wrapping_neg() };
    let parent = (relative != 0).then(|| absolute(relative - lowest));
    let steps = std::iter::successors(Some(lowest / 2), |step| Some(step / 2)).take_while(|step| *step > 0);
    (parent, steps.map(|step| relative + step).filter(|child| *child < world_size).map(absolute).collect())
}
