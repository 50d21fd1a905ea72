//! One body of checks over every transport and world size, against values computed directly.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use collective::Communicator;
use collective::threads::{Options, run};
use common::{Check, Failed, Number, Outcome, STREAM, buffer, everywhere, filled, tree_sum, value};
use device::Device;
use half::{bf16, f16};

/// Element counts: none, fewer than ranks, odd, and more than a piece for every rank.
const COUNTS: [usize; 6] = [0, 1, 3, 7, 1001, 400_003];

fn inputs<T: Number>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|place| T::of(value(rank, place))).collect()
}

fn sums<T: Number>(world_size: usize, places: std::ops::Range<usize>) -> Vec<T> {
    places.map(|place| tree_sum(0, world_size, &|rank| T::of(value(rank, place)))).collect()
}

fn all_reduce<T: Number>(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    for count in COUNTS {
        let buffer = filled::<T>(device, &inputs(rank, count));
        communicator.data.all_reduce(buffer.region(0, buffer.bytes()), T::DTYPE, STREAM)?;
        assert_eq!(*buffer.read::<T>(0, count)?, *sums::<T>(world_size, 0..count), "{count} elements");
    }
    Ok(())
}

fn all_reduce_adds_in_tree_order(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    all_reduce::<f32>(communicator, device)?;
    all_reduce::<bf16>(communicator, device)?;
    all_reduce::<f16>(communicator, device)
}

fn reduce_scatter<T: Number>(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    for count in COUNTS {
        let bytes = count * size_of::<T>();
        let input = filled::<T>(device, &inputs(rank, count * world_size));
        let expected = sums::<T>(world_size, rank * count..(rank + 1) * count);
        let output = buffer(device, bytes);
        let whole = input.region(0, input.bytes());
        communicator.data.reduce_scatter(whole, output.region(0, bytes), T::DTYPE, STREAM)?;
        assert_eq!(*output.read::<T>(0, count)?, *expected, "{count} elements");
        let own = input.region(rank * bytes, bytes);
        communicator.data.reduce_scatter(whole, own, T::DTYPE, STREAM)?;
        assert_eq!(*input.read::<T>(rank * bytes, count)?, *expected, "{count} elements in place");
    }
    Ok(())
}

fn reduce_scatter_leaves_each_rank_its_shard(
    communicator: &mut Communicator,
    device: &Device,
) -> Outcome<()> {
    reduce_scatter::<f32>(communicator, device)?;
    reduce_scatter::<bf16>(communicator, device)?;
    reduce_scatter::<f16>(communicator, device)
}

fn all_gather<T: Number>(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    for count in COUNTS {
        let bytes = count * size_of::<T>();
        let expected: Vec<T> = (0..world_size).flat_map(|rank| inputs::<T>(rank, count)).collect();
        let input = filled::<T>(device, &inputs(rank, count));
        let output = buffer(device, bytes * world_size);
        let whole = output.region(0, output.bytes());
        communicator.data.all_gather(input.region(0, bytes), whole, STREAM)?;
        assert_eq!(*output.read::<T>(0, count * world_size)?, *expected, "{count} elements");
        device.zero(whole)?;
        let own = output.region(rank * bytes, bytes);
        device.copy_from_host(&inputs::<T>(rank, count), own)?;
        communicator.data.all_gather(own, whole, STREAM)?;
        assert_eq!(*output.read::<T>(0, count * world_size)?, *expected, "{count} elements in place");
    }
    Ok(())
}

fn all_gather_brings_every_part_to_every_rank(
    communicator: &mut Communicator,
    device: &Device,
) -> Outcome<()> {
    all_gather::<f32>(communicator, device)?;
    all_gather::<f16>(communicator, device)
}

fn broadcast_from_every_root(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let rank = communicator.rank();
    for root in 0..communicator.world_size() {
        for count in COUNTS {
            let buffer = filled::<bf16>(device, &inputs(rank, count));
            communicator.data.broadcast(root, buffer.region(0, buffer.bytes()), STREAM)?;
            assert_eq!(*buffer.read::<bf16>(0, count)?, *inputs::<bf16>(root, count), "from {root}");
        }
    }
    Ok(())
}

fn sends_and_receives_pass_values_along(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    for count in COUNTS {
        let buffer = filled::<f32>(device, &inputs(rank, count));
        let region = buffer.region(0, buffer.bytes());
        if rank > 0 {
            communicator.data.receive(rank - 1, region, STREAM)?;
        }
        if rank + 1 < world_size {
            communicator.data.send(rank + 1, region, STREAM)?;
        }
        assert_eq!(*buffer.read::<f32>(0, count)?, *inputs::<f32>(0, count), "{count} elements");
    }
    communicator.data.barrier(STREAM)?;
    Ok(())
}

/// Everybody sends two messages to everybody before anybody receives: more than the queues hold.
fn exchange_of_all_with_all_does_not_deadlock(
    communicator: &mut Communicator,
    device: &Device,
) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
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
        communicator.data.exchange(&regions("sent"), &regions("received"), STREAM)?;
        for from in (0..world_size).filter(|from| *from != rank) {
            assert_eq!(*incoming[from].read::<f32>(0, 2 * count)?, *of(from, rank), "from {from}");
        }
    }
    Ok(())
}

fn exchange_matches_plain_sends_and_receives(
    communicator: &mut Communicator,
    device: &Device,
) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let (own, other) = (filled(device, &[rank as f32]), buffer(device, 4));
    let (own_region, other_region) = (own.region(0, 4), other.region(0, 4));
    let partner = rank ^ 1;
    if partner >= world_size {
        return Ok(());
    }
    if rank < partner {
        communicator.data.exchange(&[(partner, own_region)], &[(partner, other_region)], STREAM)?;
    } else {
        communicator.data.receive(partner, other_region, STREAM)?;
        communicator.data.send(partner, own_region, STREAM)?;
    }
    assert_eq!(other.read::<f32>(0, 1)?[0], partner as f32);
    Ok(())
}

/// Rows and columns of a grid: other members, other numbers, sums of their own.
fn groups_sum_among_themselves(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let parity = |remainder| (0..world_size).rev().filter(|r| r % 2 == remainder).collect::<Vec<_>>();
    let groups: Vec<_> = [0, 1].map(parity).into_iter().filter(|group| !group.is_empty()).collect();
    let mut plane = communicator.data.split(&groups)?;
    let members = groups.iter().find(|group| group.contains(&rank));
    let members = members.ok_or_else(|| Failed::Other(format!("rank {rank} is in no group")))?;
    assert_eq!(members[plane.rank()], rank);
    assert_eq!(plane.world_size(), members.len());
    let buffer = filled(device, &[1.0 + rank as f32]);
    plane.all_reduce(buffer.region(0, 4), device::DType::F32, STREAM)?;
    assert_eq!(buffer.read::<f32>(0, 1)?[0], members.iter().map(|r| 1.0 + *r as f32).sum::<f32>());
    communicator.data.all_reduce(buffer.region(0, 4), device::DType::F32, STREAM)?;
    communicator.data.synchronize(STREAM)?;
    Ok(())
}

fn control_messages_arrive_whole(communicator: &mut Communicator, _: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let control = &mut communicator.control;
    // Empty, short, and several pieces; lengths differ by rank.
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

#[test]
fn a_barrier_waits_for_everybody() {
    for world_size in 2..=6 {
        let come = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let outcome = run(world_size, Options::default(), move |mut communicator| -> Outcome<()> {
            for late in 0..world_size {
                for (plane, come) in come.iter().enumerate() {
                    if communicator.rank() == late {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    come.fetch_add(1, Ordering::SeqCst);
                    match plane {
                        0 => communicator.control.barrier()?,
                        _ => communicator.data.barrier(STREAM)?,
                    }
                    assert!(come.load(Ordering::SeqCst) >= (late + 1) * world_size);
                }
            }
            Ok(())
        });
        outcome.unwrap();
    }
}

/// What holds on every transport.
const CHECKS: [(&str, Check); 9] = [
    ("all_reduce_adds_in_tree_order", all_reduce_adds_in_tree_order),
    ("reduce_scatter_leaves_each_rank_its_shard", reduce_scatter_leaves_each_rank_its_shard),
    ("all_gather_brings_every_part_to_every_rank", all_gather_brings_every_part_to_every_rank),
    ("broadcast_from_every_root", broadcast_from_every_root),
    ("sends_and_receives_pass_values_along", sends_and_receives_pass_values_along),
    ("exchange_of_all_with_all_does_not_deadlock", exchange_of_all_with_all_does_not_deadlock),
    ("exchange_matches_plain_sends_and_receives", exchange_matches_plain_sends_and_receives),
    ("groups_sum_among_themselves", groups_sum_among_themselves),
    ("control_messages_arrive_whole", control_messages_arrive_whole),
];

#[test]
fn alone_and_over_threads() {
    for (name, check) in CHECKS {
        everywhere(name, check);
    }
}

#[cfg(feature = "mpi")]
mod mpi {
    use super::{CHECKS, common};

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
