//! Checks of a collective's operands, shared by all backends so that they reject the same calls.

mod overlap;

use device::{Backend, DType, Region};

use super::{Collective, PeerRegion};
use crate::caller::Caller;
use crate::error::Result;
use crate::peer_access::SharedSum;
use crate::rank_tree::RankTree;

/// Kind of memory that a backend moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any memory: the backend moves nothing between ranks.
    Any,
    /// Host memory and Meta.
    Host,
    /// GPU memory.
    Gpu,
    /// Memory of the one GPU that all ranks use.
    SharedGpu,
}

/// A rank's membership in a group, and the memory that the group's backend moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    /// The rank's number in the group.
    pub(crate) rank: usize,
    /// Number of ranks in the group.
    pub(crate) size: usize,
    /// Kind of memory that the backend moves.
    pub(crate) reach: Reach,
}

impl Collective<Region<'_>> {
    /// Checks operand lengths, dtypes, rank numbers and memory kinds.
    ///
    /// # Errors
    /// The first invalid operand, with the reason.
    pub(crate) fn check(&self, caller: Caller, group: Membership) -> Result<()> {
        match self {
            Collective::AllReduce { region, dtype } => {
                check_sum(caller, *dtype, &[*region])?;
                check_reach(caller, group.reach, &[*region])
            }
            Collective::ReduceScatter { input, output, dtype } => {
                check_sum(caller, *dtype, &[*input, *output])?;
                check_parts(caller, group.size, *output, *input)?;
                check_reach(caller, group.reach, &[*input, *output])
            }
            Collective::AllGather { input, output } => {
                check_regions(caller, SMALLEST_ELEMENT, &[*input, *output])?;
                check_parts(caller, group.size, *input, *output)?;
                check_reach(caller, group.reach, &[*input, *output])
            }
            Collective::Broadcast { root, region } => {
                check_rank(caller, group.size, *root)?;
                check_regions(caller, SMALLEST_ELEMENT, &[*region])?;
                check_reach(caller, group.reach, &[*region])
            }
            Collective::Send { .. } | Collective::Receive { .. } | Collective::Exchange { .. } => {
                let (sends, receives) = self.messages();
                check_peers(caller, group, &sends, &receives)?;
                let mut regions = sends.iter().chain(&receives);
                regions.try_for_each(|(_, region)| check_reach(caller, group.reach, &[*region]))
            }
            Collective::Barrier => Ok(()),
            Collective::SumShared { sums, tree, .. } => {
                sums.iter().try_for_each(|sum| check_shared_sum(caller, group.reach, sum, tree))
            }
            Collective::ExchangeShared { sends, receives } => check_peers(caller, group, sends, receives),
        }
    }
}

/// Bytes of the smallest element, for operands without a dtype.
const SMALLEST_ELEMENT: usize = 2;

/// Checks that every region lies inside its buffer and is a multiple of `size` bytes.
fn check_regions(caller: Caller, size: usize, regions: &[Region<'_>]) -> Result<()> {
    for region in regions {
        let bytes = region.bytes;
        let offset = region.offset;
        let all = region.buffer.bytes();
        if offset.checked_add(bytes).is_none_or(|end| end > all) {
            return caller
                .refuse(format!("{bytes} bytes from byte {offset} are not inside a buffer of {all} bytes"));
        }
        if !bytes.is_multiple_of(size) || !offset.is_multiple_of(size) {
            return caller
                .refuse(format!("{bytes} bytes from byte {offset} are not whole elements of {size} bytes"));
        }
    }
    Ok(())
}

/// Checks that the regions hold whole elements of a float dtype.
fn check_sum(caller: Caller, dtype: DType, regions: &[Region<'_>]) -> Result<()> {
    if !dtype.is_float() {
        return caller.refuse(format!("{dtype} cannot be summed"));
    }
    check_regions(caller, dtype.bytes(), regions)
}

/// Checks that the transport can move the memory of all regions.
pub(crate) fn check_reach(caller: Caller, reach: Reach, regions: &[Region<'_>]) -> Result<()> {
    let on_gpu = |region: &Region<'_>| region.buffer.backend() == Backend::Cuda;
    match reach {
        Reach::Host if regions.iter().any(on_gpu) => caller.refuse(
            "GPU regions need NCCL (Communicator::over_nccl); this transport moves host memory".to_owned(),
        ),
        Reach::Gpu if !regions.iter().all(on_gpu) => {
            caller.refuse("NCCL moves GPU regions; this one is not on a GPU".to_owned())
        }
        Reach::SharedGpu if !regions.iter().all(on_gpu) => {
            caller.refuse("ranks that share a GPU move its regions; this one is not on a GPU".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks that `whole` is `size` times as long as `part`.
fn check_parts(caller: Caller, size: usize, part: Region<'_>, whole: Region<'_>) -> Result<()> {
    if part.bytes.checked_mul(size) == Some(whole.bytes) {
        return Ok(());
    }
    let part = part.bytes;
    let whole = whole.bytes;
    caller.refuse(format!("{whole} bytes are not {size} times {part} bytes"))
}

/// Checks that `rank` is a rank of a group of `size`.
pub(crate) fn check_rank(caller: Caller, size: usize, rank: usize) -> Result<()> {
    if rank < size { Ok(()) } else { caller.refuse(format!("there is no rank {rank} among {size}")) }
}

/// Checks that all peers are other ranks of the group, and that no receive overlaps another region.
fn check_peers(
    caller: Caller,
    group: Membership,
    sends: &[PeerRegion<'_>],
    receives: &[PeerRegion<'_>],
) -> Result<()> {
    for (peer, region) in sends.iter().chain(receives) {
        check_rank(caller, group.size, *peer)?;
        if *peer == group.rank {
            return caller.refuse(format!("rank {peer} of the group is the caller itself"));
        }
        check_regions(caller, SMALLEST_ELEMENT, &[*region])?;
    }
    match overlap::find(sends, receives) {
        Some(problem) => caller.refuse(problem),
        None => Ok(()),
    }
}

/// Checks that the groups contain only ranks of a group of `size`, each at most once.
pub(crate) fn check_groups(caller: Caller, size: usize, groups: &[Vec<usize>]) -> Result<()> {
    let mut seen = vec![false; size];
    for rank in groups.iter().flatten() {
        check_rank(caller, size, *rank)?;
        if std::mem::replace(&mut seen[*rank], true) {
            return caller.refuse(format!("rank {rank} is in two groups"));
        }
    }
    Ok(())
}

/// Checks the region and scratch of a sum in shared memory: whole elements, enough scratch, and no overlap.
fn check_shared_sum(
    caller: Caller,
    reach: Reach,
    sum: &SharedSum<Region<'_>>,
    tree: &RankTree,
) -> Result<()> {
    check_sum(caller, sum.dtype, &[sum.region, sum.scratch])?;
    check_reach(caller, reach, &[sum.scratch])?;
    let needed = tree.scratch_elements(sum.region.bytes);
    if sum.scratch.bytes < needed {
        return caller.refuse(format!("{} bytes of scratch instead of {needed}", sum.scratch.bytes));
    }
    Ok(())
}
