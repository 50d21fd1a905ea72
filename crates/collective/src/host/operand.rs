//! Checks of operands that hold on every transport, so that Meta, host and device refuse the same calls.

use device::{Backend, DType, Region};

use crate::call::Call;
use crate::error::{CollectiveError, Result};

/// Who calls what: the context of a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// The caller's number in the world.
    pub(crate) rank: usize,
    pub(crate) call: Call,
}

impl Operand {
    pub(crate) fn refuse<T>(self, problem: String) -> Result<T> {
        Err(CollectiveError::Operand { rank: self.rank, call: self.call, problem })
    }
}

/// Every region lies inside its buffer and has whole elements of `size` bytes.
pub(crate) fn check_regions(at: Operand, size: usize, regions: &[Region<'_>]) -> Result<()> {
    for region in regions {
        let inside = region.offset.checked_add(region.bytes).is_some_and(|end| end <= region.buffer.bytes());
        if !inside {
            let (bytes, offset, all) = (region.bytes, region.offset, region.buffer.bytes());
            return at
                .refuse(format!("{bytes} bytes from byte {offset} are not inside a buffer of {all} bytes"));
        }
        if !region.bytes.is_multiple_of(size) || !region.offset.is_multiple_of(size) {
            let (bytes, offset) = (region.bytes, region.offset);
            return at
                .refuse(format!("{bytes} bytes from byte {offset} are not whole elements of {size} bytes"));
        }
    }
    Ok(())
}

/// The regions hold whole elements of a type that can be added.
pub(crate) fn check_sum(at: Operand, dtype: DType, regions: &[Region<'_>]) -> Result<()> {
    if !dtype.is_float() {
        return at.refuse(format!("there is no sum of {dtype}"));
    }
    check_regions(at, dtype.bytes(), regions)
}

/// No region is a GPU's: this transport reads and writes with the host's hands.
pub(crate) fn check_on_host(at: Operand, regions: &[Region<'_>]) -> Result<()> {
    if regions.iter().any(|region| region.buffer.backend() == Backend::Cuda) {
        return at.refuse(
            "regions of GPUs go over NCCL (Communicator::over_nccl), and this transport moves host memory"
                .to_owned(),
        );
    }
    Ok(())
}

/// `whole` has `world_size` parts of the length of `part`.
pub(crate) fn check_gather(
    at: Operand,
    world_size: usize,
    part: Region<'_>,
    whole: Region<'_>,
) -> Result<()> {
    if part.bytes.checked_mul(world_size) == Some(whole.bytes) {
        return Ok(());
    }
    let (part, whole) = (part.bytes, whole.bytes);
    at.refuse(format!("{whole} bytes are not {world_size} times {part} bytes"))
}

/// `root` is a rank of the group.
pub(crate) fn check_root(at: Operand, world_size: usize, root: usize) -> Result<()> {
    if root < world_size { Ok(()) } else { at.refuse(format!("there is no rank {root} among {world_size}")) }
}

/// All peers are other ranks of the group, all regions can be moved, and none is received over another.
pub(crate) fn check_point_to_point(
    at: Operand,
    own: usize,
    world_size: usize,
    sends: &[(usize, Region<'_>)],
    receives: &[(usize, Region<'_>)],
) -> Result<()> {
    for (peer, region) in sends.iter().chain(receives) {
        check_peer(at, own, world_size, *peer)?;
        check_regions(at, 2, &[*region])?;
    }
    check_overlap(at, sends, receives)
}

fn check_peer(at: Operand, own: usize, world_size: usize, peer: usize) -> Result<()> {
    check_root(at, world_size, peer)?;
    if peer == own {
        return at.refuse(format!("rank {peer} of the group is the caller itself"));
    }
    Ok(())
}

/// No receive overlaps another region of the same exchange. Regions are looked at in their order in memory:
/// an exchange may have several for each of thousands of ranks.
fn check_overlap(at: Operand, sends: &[(usize, Region<'_>)], receives: &[(usize, Region<'_>)]) -> Result<()> {
    let all = sends.iter().map(|send| (false, send)).chain(receives.iter().map(|receive| (true, receive)));
    let mut all: Vec<_> = all.filter(|(_, (_, region))| region.bytes > 0).collect();
    let start = |region: &Region<'_>| (std::ptr::from_ref(region.buffer).addr(), region.offset);
    let end = |region: &Region<'_>| (std::ptr::from_ref(region.buffer).addr(), region.offset + region.bytes);
    all.sort_unstable_by_key(|(_, (_, region))| start(region));
    // Of those that begin no later: the one that ends last, and the received one that does.
    let mut last: Option<&(usize, Region<'_>)> = None;
    let mut last_received: Option<&(usize, Region<'_>)> = None;
    for (received, entry) in all {
        let reaches = |before: &&(usize, Region<'_>)| end(&before.1) > start(&entry.1);
        let other = match received {
            true => last.filter(reaches),
            false => last_received.filter(reaches).map(|_| entry),
        };
        if let Some((peer, other)) = other {
            let (start, end) = (other.offset, other.offset + other.bytes);
            return at.refuse(format!(
                "bytes {start}..{end} of a buffer, for rank {peer}, overlap what is received there"
            ));
        }
        let later = |before: Option<&(usize, Region<'_>)>| before.is_none_or(|b| end(&b.1) < end(&entry.1));
        if later(last) {
            last = Some(entry);
        }
        if received && later(last_received) {
            last_received = Some(entry);
        }
    }
    Ok(())
}

/// The groups hold ranks of `world_size`, none of them twice.
pub(crate) fn check_groups(at: Operand, world_size: usize, groups: &[Vec<usize>]) -> Result<()> {
    let mut seen = vec![false; world_size];
    for rank in groups.iter().flatten() {
        match seen.get_mut(*rank) {
            Some(seen) if !*seen => *seen = true,
            Some(_) => return at.refuse(format!("rank {rank} is in two groups")),
            None => return at.refuse(format!("there is no rank {rank} among {world_size}")),
        }
    }
    Ok(())
}

/// The group that a rank is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The same on all its ranks, and on no others.
    pub(crate) number: usize,
    /// The rank's number in it.
    pub(crate) place: usize,
    /// Their numbers among those that are divided, by number in the group.
    pub(crate) members: Vec<usize>,
}

/// The group that holds `rank`: one of itself alone where none does.
pub(crate) fn my_group(groups: &[Vec<usize>], rank: usize) -> Group {
    let place = |(number, members): (usize, &Vec<usize>)| {
        let place = members.iter().position(|member| *member == rank)?;
        Some(Group { number, place, members: members.clone() })
    };
    let alone = || Group { number: groups.len() + rank, place: 0, members: vec![rank] };
    groups.iter().enumerate().find_map(place).unwrap_or_else(alone)
}
