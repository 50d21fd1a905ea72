//! One body of checks over every transport and world size, against values computed directly.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use collective::Communicator;
use collective::threads::{Options, run};
use common::nccl::{PATIENCE, SETTINGS, gpus, run_on_gpus};
use common::{
    Check, Failed, Number, Outcome, STREAM, assert_sums, buffer, everywhere, filled, value, values,
};
use device::Device;
use half::{bf16, f16};

/// Element counts: none, fewer than ranks, odd, and more than a piece for every rank.
const COUNTS: [usize; 6] = [0, 1, 3, 7, 1001, 400_003];

fn inputs<T: Number>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|place| T::of(value(rank, place))).collect()
}

/// The operands of sums.
fn operand<T: Number>(rank: usize, place: usize) -> T {
    T::of(value(rank, place))
}

fn all_reduce<T: Number>(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    for count in COUNTS {
        let buffer = filled::<T>(device, &inputs(rank, count));
        communicator.data.all_reduce(buffer.region(0, buffer.bytes()), T::DTYPE, STREAM)?;
        assert_sums(device, world_size, &values::<T>(device, &buffer, 0, count)?, &operand);
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
        let of = |from: usize, place: usize| operand::<T>(from, rank * count + place);
        let output = buffer(device, bytes);
        let whole = input.region(0, input.bytes());
        communicator.data.reduce_scatter(whole, output.region(0, bytes), T::DTYPE, STREAM)?;
        assert_sums(device, world_size, &values::<T>(device, &output, 0, count)?, &of);
        let own = input.region(rank * bytes, bytes);
        communicator.data.reduce_scatter(whole, own, T::DTYPE, STREAM)?;
        assert_sums(device, world_size, &values::<T>(device, &input, rank * bytes, count)?, &of);
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
        assert_eq!(values::<T>(device, &output, 0, count * world_size)?, expected, "{count} elements");
        device.zero(whole)?;
        let own = output.region(rank * bytes, bytes);
        device.copy_from_host(&inputs::<T>(rank, count), own)?;
        device.synchronize()?;
        communicator.data.all_gather(own, whole, STREAM)?;
        assert_eq!(values::<T>(device, &output, 0, count * world_size)?, expected, "{count} in place");
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
            assert_eq!(
                values::<bf16>(device, &buffer, 0, count)?,
                inputs::<bf16>(root, count),
                "from {root}"
            );
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
        assert_eq!(values::<f32>(device, &buffer, 0, count)?, inputs::<f32>(0, count), "{count} elements");
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
            assert_eq!(values::<f32>(device, &incoming[from], 0, 2 * count)?, of(from, rank), "from {from}");
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
    assert_eq!(values::<f32>(device, &other, 0, 1)?, [partner as f32]);
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
    let sum: f32 = members.iter().map(|r| 1.0 + *r as f32).sum();
    assert_eq!(values::<f32>(device, &buffer, 0, 1)?, [sum]);
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

/// Each rank is late once, on both planes; nobody goes on before it has come.
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
fn a_barrier_waits_for_everybody() {
    for world_size in 2..=6 {
        let come = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let outcome = run(world_size, Options::default(), move |mut c| barriers_wait(&mut c, &come));
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

#[test]
fn over_nccl() {
    let Some(gpus) = gpus() else { return };
    for world_size in 2..=gpus.largest_world {
        for settings in SETTINGS {
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

/// Ranks whose first calls with each other differ in form connect all the same, without a word before.
#[test]
fn first_calls_over_nccl_may_differ_in_form() {
    let Some(gpus) = gpus() else { return };
    let outcome = run(gpus.largest_world, Options::default(), |communicator| {
        let device = common::nccl::gpu(communicator.rank(), communicator.rank(), "")?;
        let mut communicator = communicator.over_nccl(&device, PATIENCE)?;
        exchange_matches_plain_sends_and_receives(&mut communicator, &device)?;
        sends_and_receives_pass_values_along(&mut communicator, &device)
    });
    outcome.unwrap();
}

#[cfg(feature = "mpi")]
mod mpi {
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
        let peers: Vec<usize> = (0..world.size()).collect();
        communicator.data.warm_up(&peers).unwrap();
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
