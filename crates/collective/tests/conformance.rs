//! One set of checks for every transport and world size, against values computed directly.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use collective::threads::{Options, run};
use collective::{CollectiveUse, Communicator, DataPlane};
use common::nccl::{PATIENCE, SETTINGS, gpus, run_on_gpus};
use common::shared::{parts_are_exchanged_in_shared_memory, sums_in_shared_memory};
use common::{
    Check, Failed, Number, Outcome, STREAM, assert_sums, buffer, everywhere, filled, value, values,
};
use device::{DType, Device, StreamKind};
use half::{bf16, f16};

/// The body of one rank on a plane, with its checks.
type PlaneCheck = fn(&mut dyn DataPlane, &Device) -> Outcome<()>;

/// Element counts: none, fewer than ranks, odd, and more than one payload for every rank.
const COUNTS: [usize; 6] = [0, 1, 3, 7, 1001, 400_003];

fn inputs<T: Number>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|place| T::of(value(rank, place))).collect()
}

/// Returns an operand of sums.
fn operand<T: Number>(rank: usize, place: usize) -> T {
    T::of(value(rank, place))
}

fn all_reduce<T: Number>(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (plane.rank(), plane.world_size());
    for count in COUNTS {
        let buffer = filled::<T>(device, &inputs(rank, count));
        plane.all_reduce(buffer.region(0, buffer.bytes()), T::DTYPE, STREAM)?;
        assert_sums(device, world_size, &values::<T>(device, &buffer, 0, count)?, &operand);
    }
    Ok(())
}

fn all_reduce_adds_in_tree_order(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    all_reduce::<f32>(plane, device)?;
    all_reduce::<bf16>(plane, device)?;
    all_reduce::<f16>(plane, device)
}

fn reduce_scatter<T: Number>(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (plane.rank(), plane.world_size());
    for count in COUNTS {
        let bytes = count * size_of::<T>();
        let input = filled::<T>(device, &inputs(rank, count * world_size));
        let of = |from: usize, place: usize| operand::<T>(from, rank * count + place);
        let output = buffer(device, bytes);
        let whole = input.region(0, input.bytes());
        plane.reduce_scatter(whole, output.region(0, bytes), T::DTYPE, STREAM)?;
        assert_sums(device, world_size, &values::<T>(device, &output, 0, count)?, &of);
        let own = input.region(rank * bytes, bytes);
        plane.reduce_scatter(whole, own, T::DTYPE, STREAM)?;
        assert_sums(device, world_size, &values::<T>(device, &input, rank * bytes, count)?, &of);
    }
    Ok(())
}

fn reduce_scatter_leaves_each_rank_its_shard(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    reduce_scatter::<f32>(plane, device)?;
    reduce_scatter::<bf16>(plane, device)?;
    reduce_scatter::<f16>(plane, device)
}

fn all_gather<T: Number>(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (plane.rank(), plane.world_size());
    for count in COUNTS {
        let bytes = count * size_of::<T>();
        let expected: Vec<T> = (0..world_size).flat_map(|rank| inputs::<T>(rank, count)).collect();
        let input = filled::<T>(device, &inputs(rank, count));
        let output = buffer(device, bytes * world_size);
        let whole = output.region(0, output.bytes());
        plane.all_gather(input.region(0, bytes), whole, STREAM)?;
        assert_eq!(values::<T>(device, &output, 0, count * world_size)?, expected, "{count} elements");
        device.zero(whole)?;
        let own = output.region(rank * bytes, bytes);
        device.copy_from_host(&inputs::<T>(rank, count), own)?;
        device.synchronize()?;
        plane.all_gather(own, whole, STREAM)?;
        assert_eq!(values::<T>(device, &output, 0, count * world_size)?, expected, "{count} in place");
    }
    Ok(())
}

fn all_gather_brings_every_part_to_every_rank(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    all_gather::<f32>(plane, device)?;
    all_gather::<f16>(plane, device)
}

fn broadcast_from_every_root(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    let rank = plane.rank();
    for root in 0..plane.world_size() {
        for count in COUNTS {
            let buffer = filled::<bf16>(device, &inputs(rank, count));
            plane.broadcast(root, buffer.region(0, buffer.bytes()), STREAM)?;
            assert_eq!(
                values::<bf16>(device, &buffer, 0, count)?,
                inputs::<bf16>(root, count),
                "from {root}"
            );
        }
    }
    Ok(())
}

fn sends_and_receives_pass_values_along(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (plane.rank(), plane.world_size());
    for count in COUNTS {
        let buffer = filled::<f32>(device, &inputs(rank, count));
        let region = buffer.region(0, buffer.bytes());
        if rank > 0 {
            plane.receive(rank - 1, region, STREAM)?;
        }
        if rank + 1 < world_size {
            plane.send(rank + 1, region, STREAM)?;
        }
        assert_eq!(values::<f32>(device, &buffer, 0, count)?, inputs::<f32>(0, count), "{count} elements");
    }
    plane.barrier(STREAM)?;
    Ok(())
}

/// Every rank sends two messages to every other before any receives: more than the queues hold.
fn exchange_of_all_with_all_does_not_deadlock(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (plane.rank(), plane.world_size());
    for count in COUNTS {
        let bytes = count * 4;
        let of = |from: usize, to: usize| inputs::<f32>(100 * from + to, 2 * count);
        let outgoing: Vec<_> = (0..world_size).map(|to| filled(device, &of(rank, to))).collect();
        let incoming: Vec<_> = (0..world_size).map(|_| buffer(device, 2 * bytes)).collect();
        let halves = |buffers: &'static str| if buffers == "sent" { &outgoing } else { &incoming };
        let regions = |which| {
            let peers = halves(which).iter().enumerate().filter(|(peer, _)| *peer != rank);
            peers
                .flat_map(|(peer, b)| [(peer, b.region(0, bytes)), (peer, b.region(bytes, bytes))])
                .collect::<Vec<_>>()
        };
        plane.exchange(&regions("sent"), &regions("received"), STREAM)?;
        for from in (0..world_size).filter(|from| *from != rank) {
            assert_eq!(values::<f32>(device, &incoming[from], 0, 2 * count)?, of(from, rank), "from {from}");
        }
    }
    Ok(())
}

fn exchange_matches_plain_sends_and_receives(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (plane.rank(), plane.world_size());
    let (own, other) = (filled(device, &[rank as f32]), buffer(device, 4));
    let (own_region, other_region) = (own.region(0, 4), other.region(0, 4));
    let partner = rank ^ 1;
    if partner >= world_size {
        return Ok(());
    }
    if rank < partner {
        plane.exchange(&[(partner, own_region)], &[(partner, other_region)], STREAM)?;
    } else {
        plane.receive(partner, other_region, STREAM)?;
        plane.send(partner, own_region, STREAM)?;
    }
    assert_eq!(values::<f32>(device, &other, 0, 1)?, [partner as f32]);
    Ok(())
}

/// Groups of a plane have their own members, rank numbers and sums.
fn groups_sum_among_themselves(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    let (rank, groups) = (plane.rank(), by_parity(plane.world_size()));
    let mut group = plane.split(&groups)?;
    let members = members_of(&groups, rank);
    assert_eq!((members[group.rank()], group.world_size()), (rank, members.len()));
    let buffer = filled(device, &[1.0 + rank as f32]);
    group.all_reduce(buffer.region(0, 4), DType::F32, STREAM)?;
    let sum: f32 = members.iter().map(|r| 1.0 + *r as f32).sum();
    assert_eq!(values::<f32>(device, &buffer, 0, 1)?, [sum]);
    plane.all_reduce(buffer.region(0, 4), DType::F32, STREAM)?;
    plane.synchronize(STREAM)?;
    Ok(())
}

/// Groups the even ranks and the odd ones, the last rank first.
fn by_parity(world_size: usize) -> Vec<Vec<usize>> {
    let parity = |remainder| (0..world_size).rev().filter(|r| r % 2 == remainder).collect::<Vec<_>>();
    [0, 1].map(parity).into_iter().filter(|group| !group.is_empty()).collect()
}

/// Returns the members of a rank's group; the rank alone if it is in none.
fn members_of(groups: &[Vec<usize>], rank: usize) -> Vec<usize> {
    groups.iter().find(|group| group.contains(&rank)).cloned().unwrap_or_else(|| vec![rank])
}

/// Checks of every plane.
const PLANE_CHECKS: [(&str, PlaneCheck); 10] = [
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

fn on_a_plane(plane: &mut dyn DataPlane, device: &Device) -> Outcome<()> {
    PLANE_CHECKS.iter().try_for_each(|(name, check)| {
        check(plane, device).map_err(|error| Failed::Other(format!("{name}: {error}")))
    })
}

/// Runs all plane checks on the groups of a split: with every rank in a group, and with some in none.
fn on_groups(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let ends = if world_size > 1 { vec![world_size - 1, 0] } else { vec![] };
    for groups in [by_parity(world_size), vec![ends]] {
        let mut plane = communicator.divide(&groups)?;
        let members = members_of(&groups, rank);
        assert_eq!((members[plane.rank()], plane.world_size()), (rank, members.len()));
        plane.warm_up(&CollectiveUse::everything(members.len()))?;
        on_a_plane(&mut *plane, device)?;
    }
    Ok(())
}

/// Rows of a grid pass values along while its columns gather theirs, and ranks differ in the order of their
/// first calls.
fn planes_work_side_by_side(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let rows: Vec<_> = (0..world_size).step_by(2).map(|r| (r..world_size.min(r + 2)).collect()).collect();
    let columns = by_parity(world_size);
    let mut row = communicator.divide(&rows)?;
    let mut column = communicator.divide(&columns)?;
    row.warm_up(&[CollectiveUse::Peer(0), CollectiveUse::Peer(row.world_size() - 1)])?;
    column.warm_up(&[CollectiveUse::AllGather])?;
    let mut expected = communicator.traffic();
    for count in COUNTS {
        let bytes = 4 * count;
        let (passed, own) =
            (filled::<f32>(device, &inputs(rank, count)), filled::<f32>(device, &inputs(rank, count)));
        let all = buffer(device, bytes * column.world_size());
        for _ in 0..3 {
            let mut pass = || match (row.rank(), row.world_size()) {
                (0, 2) => row.send(1, passed.region(0, bytes), StreamKind::Transfer),
                (1, _) => row.receive(0, passed.region(0, bytes), StreamKind::Transfer),
                _ => Ok(()),
            };
            let mut gather = || column.all_gather(own.region(0, bytes), all.region(0, all.bytes()), STREAM);
            if rank % 2 == 0 {
                pass()?;
                gather()?;
            } else {
                gather()?;
                pass()?;
            }
        }
        assert_eq!(values::<f32>(device, &passed, 0, count)?, inputs::<f32>(rank - row.rank(), count));
        let members = members_of(&columns, rank);
        let gathered: Vec<f32> = members.iter().flat_map(|from| inputs::<f32>(*from, count)).collect();
        assert_eq!(values::<f32>(device, &all, 0, gathered.len())?, gathered);
    }
    expected += row.traffic();
    expected += column.traffic();
    assert_eq!(communicator.traffic(), expected);
    Ok(())
}

fn control_messages_arrive_whole(communicator: &mut Communicator, _: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let control = &mut communicator.control;
    // Empty, short, and several payloads; lengths differ by rank.
    for scale in [0, 1, 300_001] {
        let message = |rank: usize| vec![rank as u8 + 1; scale * (rank + 1)];
        let all: Vec<_> = (0..world_size).map(message).collect();
        assert_eq!(control.all_gather(&message(rank))?, all);
        for root in 0..world_size {
            let gathered = control.gather(root, &message(rank))?;
            assert_eq!(gathered, (rank == root).then(|| all.clone()));
            let mut received = message(rank);
            control.broadcast(root, &mut received)?;
            assert_eq!(received, all[root]);
        }
        control.barrier()?;
    }
    Ok(())
}

/// Each rank is late once, on both planes; no rank continues before it has arrived.
fn barriers_wait(communicator: &mut Communicator, come: &[AtomicUsize; 2]) -> Outcome<()> {
    let world_size = communicator.world_size();
    for late in 0..world_size {
        for (plane, come) in come.iter().enumerate() {
            if communicator.rank() == late {
                std::thread::sleep(Duration::from_millis(2));
            }
            come.fetch_add(1, Ordering::SeqCst);
            if plane == 0 {
                communicator.control.barrier()?;
            } else {
                communicator.data.barrier(STREAM)?;
                communicator.data.synchronize(STREAM)?;
            }
            assert!(come.load(Ordering::SeqCst) >= (late + 1) * world_size);
        }
    }
    Ok(())
}

#[test]
fn barriers_wait_for_every_rank() {
    for world_size in 2..=6 {
        let come = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let outcome = run(world_size, Options::default(), move |mut c| barriers_wait(&mut c, &come));
        outcome.unwrap();
    }
}

/// Checks of every transport.
const CHECKS: [(&str, Check); 4] = [
    ("on the plane of all ranks", |communicator, device| on_a_plane(&mut *communicator.data, device)),
    ("on_groups", on_groups),
    ("planes_work_side_by_side", planes_work_side_by_side),
    ("control_messages_arrive_whole", control_messages_arrive_whole),
];

#[test]
fn solo_and_over_threads() {
    for (name, check) in CHECKS {
        everywhere(name, check);
    }
}

#[test]
fn over_nccl() {
    let Some(gpus) = gpus() else { return };
    for world_size in 2..=gpus.largest_world {
        // The kind of allocation affects peer access between GPUs, but hardly depends on their number.
        let settings = if world_size == gpus.largest_world { &SETTINGS[..] } else { &SETTINGS[1..] };
        for settings in settings {
            let outcome = run_on_gpus(world_size, PATIENCE, settings, |communicator, device| {
                CHECKS.iter().try_for_each(|(_, check)| check(communicator, device))
            });
            outcome.unwrap_or_else(|error| panic!("{world_size} ranks, {settings}: {error}"));
        }
        let come = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let outcome = run_on_gpus(world_size, PATIENCE, "", move |c, _| barriers_wait(c, &come));
        outcome.unwrap_or_else(|error| panic!("{world_size} ranks: {error}"));
    }
}

/// Ranks whose first calls with each other have different forms still connect without a warm-up.
#[test]
fn first_calls_over_nccl_may_differ_in_form() {
    let Some(gpus) = gpus() else { return };
    let outcome = run(gpus.largest_world, Options::default(), |communicator| {
        let device = common::nccl::gpu(communicator.rank(), communicator.rank(), "")?;
        let mut communicator = communicator.over_nccl(&device, PATIENCE)?;
        exchange_matches_plain_sends_and_receives(&mut *communicator.data, &device)?;
        sends_and_receives_pass_values_along(&mut *communicator.data, &device)
    });
    outcome.unwrap();
}

#[cfg(feature = "mpi")]
mod mpi {
    use collective::CollectiveUse;

    use super::{CHECKS, PATIENCE, common, gpus};

    #[test]
    fn over_mpi_and_nccl() {
        let Some(gpus) = gpus() else { return };
        for ranks in 2..=gpus.largest_world {
            let Some(output) = common::mpi::launched(ranks, "mpi::one_rank_on_a_gpu", "") else { return };
            let text = common::mpi::text(&output);
            assert!(output.status.success(), "{ranks} ranks: {text}");
            assert_eq!(text.matches("every check held").count(), ranks, "{text}");
        }
    }

    #[test]
    #[ignore = "one process of a job that over_mpi_and_nccl starts"]
    fn one_rank_on_a_gpu() {
        let (world, communicator) = collective::mpi::start(PATIENCE).unwrap();
        let device = common::nccl::gpu(world.rank(), world.local().0, "expandable_segments:True").unwrap();
        let mut communicator = communicator.over_nccl(&device, PATIENCE).unwrap();
        communicator.data.warm_up(&CollectiveUse::everything(world.size())).unwrap();
        for (name, check) in CHECKS {
            check(&mut communicator, &device).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        drop(communicator);
        world.finish().unwrap();
        println!("every check held");
    }

    #[test]
    fn over_mpi() {
        for ranks in 1..=4 {
            let Some(output) = common::mpi::launched(ranks, "mpi::one_rank", "") else { return };
            let text = common::mpi::text(&output);
            assert!(output.status.success(), "{ranks} ranks: {text}");
            assert_eq!(text.matches("every check held").count(), ranks, "{text}");
        }
    }

    #[test]
    #[ignore = "one process of a job that over_mpi starts"]
    fn one_rank() {
        let (world, mut communicator) = collective::mpi::start(std::time::Duration::from_secs(30)).unwrap();
        let device = common::cpu(world.rank());
        for (name, check) in CHECKS {
            check(&mut communicator, &device).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        drop(communicator);
        world.finish().unwrap();
        println!("every check held");
    }
}
