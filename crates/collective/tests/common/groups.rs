//! Checks of every process group: the world's, and those split from it.

use collective::{Collective, ProcessGroup};
use device::{DType, Device};
use half::{bf16, f16};

use super::shared::{parts_are_exchanged_in_shared_memory, sums_in_shared_memory};
use super::{Failed, Number, Outcome, STREAM, assert_sums, buffer, filled, value, values};

/// The body of one rank of a group, with its checks.
type GroupCheck = fn(&ProcessGroup, &Device) -> Outcome<()>;

/// Element counts: none, fewer than ranks, odd, and more than one payload per rank.
pub(crate) const COUNTS: [usize; 6] = [0, 1, 3, 7, 1001, 400_003];

pub(crate) fn inputs<T: Number>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::rounded(value(rank, index))).collect()
}

/// Returns element `index` of a rank's operand of a sum.
fn operand<T: Number>(rank: usize, index: usize) -> T {
    T::rounded(value(rank, index))
}

fn all_reduce<T: Number>(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    let rank = group.rank();
    let world_size = group.world_size();
    for count in COUNTS {
        let buffer = filled::<T>(device, &inputs(rank, count));
        group.run(
            Collective::AllReduce { region: buffer.region(0, buffer.bytes()), dtype: T::DTYPE },
            STREAM,
        )?;
        assert_sums(device, world_size, &values::<T>(device, &buffer, 0, count)?, &operand);
    }
    Ok(())
}

fn all_reduce_adds_in_tree_order(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    all_reduce::<f32>(group, device)?;
    all_reduce::<bf16>(group, device)?;
    all_reduce::<f16>(group, device)
}

fn reduce_scatter<T: Number>(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    let rank = group.rank();
    let world_size = group.world_size();
    for count in COUNTS {
        let bytes = count * size_of::<T>();
        let input = filled::<T>(device, &inputs(rank, count * world_size));
        let expected = |from: usize, index: usize| operand::<T>(from, rank * count + index);
        let output = buffer(device, bytes);
        let whole = input.region(0, input.bytes());
        group.run(
            Collective::ReduceScatter { input: whole, output: output.region(0, bytes), dtype: T::DTYPE },
            STREAM,
        )?;
        assert_sums(device, world_size, &values::<T>(device, &output, 0, count)?, &expected);
        let own = input.region(rank * bytes, bytes);
        group.run(Collective::ReduceScatter { input: whole, output: own, dtype: T::DTYPE }, STREAM)?;
        assert_sums(device, world_size, &values::<T>(device, &input, rank * bytes, count)?, &expected);
    }
    Ok(())
}

fn reduce_scatter_leaves_each_rank_its_shard(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    reduce_scatter::<f32>(group, device)?;
    reduce_scatter::<bf16>(group, device)?;
    reduce_scatter::<f16>(group, device)
}

fn all_gather<T: Number>(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    let rank = group.rank();
    let world_size = group.world_size();
    for count in COUNTS {
        let bytes = count * size_of::<T>();
        let expected: Vec<T> = (0..world_size).flat_map(|rank| inputs::<T>(rank, count)).collect();
        let input = filled::<T>(device, &inputs(rank, count));
        let output = buffer(device, bytes * world_size);
        let whole = output.region(0, output.bytes());
        group.run(Collective::AllGather { input: input.region(0, bytes), output: whole }, STREAM)?;
        assert_eq!(values::<T>(device, &output, 0, count * world_size)?, expected, "{count} elements");
        device.zero(whole)?;
        let own = output.region(rank * bytes, bytes);
        device.copy_from_host(&inputs::<T>(rank, count), own)?;
        device.synchronize()?;
        group.run(Collective::AllGather { input: own, output: whole }, STREAM)?;
        assert_eq!(values::<T>(device, &output, 0, count * world_size)?, expected, "{count} in place");
    }
    Ok(())
}

fn all_gather_brings_every_part_to_every_rank(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    all_gather::<f32>(group, device)?;
    all_gather::<f16>(group, device)
}

fn broadcast_from_every_root(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    let rank = group.rank();
    for root in 0..group.world_size() {
        for count in COUNTS {
            let buffer = filled::<bf16>(device, &inputs(rank, count));
            group.run(Collective::Broadcast { root, region: buffer.region(0, buffer.bytes()) }, STREAM)?;
            assert_eq!(
                values::<bf16>(device, &buffer, 0, count)?,
                inputs::<bf16>(root, count),
                "from {root}"
            );
        }
    }
    Ok(())
}

pub(crate) fn sends_and_receives_pass_values_along(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    let rank = group.rank();
    let world_size = group.world_size();
    for count in COUNTS {
        let buffer = filled::<f32>(device, &inputs(rank, count));
        let region = buffer.region(0, buffer.bytes());
        if rank > 0 {
            group.run(Collective::Receive { from: rank - 1, region }, STREAM)?;
        }
        if rank + 1 < world_size {
            group.run(Collective::Send { to: rank + 1, region }, STREAM)?;
        }
        assert_eq!(values::<f32>(device, &buffer, 0, count)?, inputs::<f32>(0, count), "{count} elements");
    }
    group.run(Collective::Barrier, STREAM)?;
    Ok(())
}

/// Every rank sends two messages to every other rank before any receives: more than the queues hold.
fn exchange_of_all_with_all_does_not_deadlock(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    let rank = group.rank();
    let world_size = group.world_size();
    for count in COUNTS {
        let bytes = count * 4;
        let message = |from: usize, to: usize| inputs::<f32>(100 * from + to, 2 * count);
        let outgoing: Vec<_> = (0..world_size).map(|to| filled(device, &message(rank, to))).collect();
        let incoming: Vec<_> = (0..world_size).map(|_| buffer(device, 2 * bytes)).collect();
        let halves = |buffers: &'static str| if buffers == "sent" { &outgoing } else { &incoming };
        let regions = |which| {
            let peers = halves(which).iter().enumerate().filter(|(peer, _)| *peer != rank);
            peers
                .flat_map(|(peer, b)| [(peer, b.region(0, bytes)), (peer, b.region(bytes, bytes))])
                .collect::<Vec<_>>()
        };
        group.run(Collective::Exchange { sends: regions("sent"), receives: regions("received") }, STREAM)?;
        for from in (0..world_size).filter(|from| *from != rank) {
            assert_eq!(
                values::<f32>(device, &incoming[from], 0, 2 * count)?,
                message(from, rank),
                "from {from}"
            );
        }
    }
    Ok(())
}

pub(crate) fn exchange_matches_plain_sends_and_receives(
    group: &ProcessGroup,
    device: &Device,
) -> Outcome<()> {
    let rank = group.rank();
    let world_size = group.world_size();
    let own = filled(device, &[rank as f32]);
    let other = buffer(device, 4);
    let own_region = own.region(0, 4);
    let other_region = other.region(0, 4);
    let partner = rank ^ 1;
    if partner >= world_size {
        return Ok(());
    }
    if rank < partner {
        group.run(
            Collective::Exchange {
                sends: vec![(partner, own_region)],
                receives: vec![(partner, other_region)],
            },
            STREAM,
        )?;
    } else {
        group.run(Collective::Receive { from: partner, region: other_region }, STREAM)?;
        group.run(Collective::Send { to: partner, region: own_region }, STREAM)?;
    }
    assert_eq!(values::<f32>(device, &other, 0, 1)?, [partner as f32]);
    Ok(())
}

/// Groups split off have their own members, rank numbers and sums.
fn groups_sum_among_themselves(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    let rank = group.rank();
    let groups = by_parity(group.world_size());
    let group = group.split(&groups)?;
    let members = members_of(&groups, rank);
    assert_eq!((members[group.rank()], group.world_size()), (rank, members.len()));
    let buffer = filled(device, &[1.0 + rank as f32]);
    group.run(Collective::AllReduce { region: buffer.region(0, 4), dtype: DType::F32 }, STREAM)?;
    let sum: f32 = members.iter().map(|r| 1.0 + *r as f32).sum();
    assert_eq!(values::<f32>(device, &buffer, 0, 1)?, [sum]);
    group.run(Collective::AllReduce { region: buffer.region(0, 4), dtype: DType::F32 }, STREAM)?;
    group.synchronize(STREAM)?;
    Ok(())
}

/// Returns two groups: the even ranks and the odd ones, the last rank first.
pub(crate) fn by_parity(world_size: usize) -> Vec<Vec<usize>> {
    let parity = |remainder| (0..world_size).rev().filter(|r| r % 2 == remainder).collect::<Vec<_>>();
    [0, 1].map(parity).into_iter().filter(|group| !group.is_empty()).collect()
}

/// Returns the members of a rank's group, or the rank alone if it is in no group.
pub(crate) fn members_of(groups: &[Vec<usize>], rank: usize) -> Vec<usize> {
    groups.iter().find(|group| group.contains(&rank)).cloned().unwrap_or_else(|| vec![rank])
}

/// Checks of every group.
const GROUP_CHECKS: [(&str, GroupCheck); 10] = [
    ("all_reduce_adds_in_tree_order", all_reduce_adds_in_tree_order),
    ("reduce_scatter_leaves_each_rank_its_shard", reduce_scatter_leaves_each_rank_its_shard),
    ("all_gather_brings_every_part_to_every_rank", all_gather_brings_every_part_to_every_rank),
    ("broadcast_from_every_root", broadcast_from_every_root),
    ("sends_and_receives_pass_values_along", sends_and_receives_pass_values_along),
    ("exchange_of_all_with_all_does_not_deadlock", exchange_of_all_with_all_does_not_deadlock),
    ("exchange_matches_plain_sends_and_receives", exchange_matches_plain_sends_and_receives),
    ("groups_sum_among_themselves", groups_sum_among_themselves),
    ("sums_in_shared_memory", sums_in_shared_memory),
    ("parts_are_exchanged_in_shared_memory", parts_are_exchanged_in_shared_memory),
];

pub(crate) fn on_a_group(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    GROUP_CHECKS.iter().try_for_each(|(name, check)| {
        check(group, device).map_err(|error| Failed::Other(format!("{name}: {error}")))
    })
}
