//! One set of checks for every transport and world size, against values computed directly.

use crate::common;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::groups::{
    COUNTS, by_parity, exchange_matches_plain_sends_and_receives, inputs, members_of, on_a_group,
    sends_and_receives_pass_values_along,
};
use crate::common::nccl::{PATIENCE, SETTINGS, gpus, run_on_gpus};
use crate::common::shared_gpu;
use crate::common::{Check, Failed, Outcome, STREAM, buffer, everywhere, filled, values};
use collective::threads::{Options, run};
use collective::{Axis, Collective, Communicator, GridShape};
use device::{Device, StreamKind};

/// Runs all group checks on the groups of a split: once with every rank in a group, once with some in none.
fn on_groups(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    let ends = if world_size > 1 { vec![world_size - 1, 0] } else { vec![] };
    for groups in [by_parity(world_size), vec![ends]] {
        let group = communicator.divide(&groups)?;
        let members = members_of(&groups, rank);
        assert_eq!((members[group.rank()], group.world_size()), (rank, members.len()));
        group.warm_up(&Collective::everything(members.len()))?;
        on_a_group(&group, device)?;
    }
    Ok(())
}

/// Runs all group checks on the groups along every axis of a grid. Checks that groups, also over several
/// axes, have the grid's members in its order.
fn on_every_axis(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    for axis in Axis::ALL {
        let others: Vec<_> = Axis::ALL.into_iter().filter(|other| *other != axis).collect();
        let grid = divided_along(axis, communicator.world_size()).seen_from(communicator.rank());
        let grid = grid.map_err(|error| Failed::Other(error.to_string()))?;
        for axes in [&[axis][..], &others] {
            let members = grid.group_over(axes);
            let group = communicator.divide(&grid.groups_over(axes))?;
            group.warm_up(&Collective::everything(members.ranks.len()))?;
            assert_eq!((group.rank(), group.world_size()), (members.index, members.ranks.len()));
            let own = filled(device, &[grid.rank() as f32]);
            let all = buffer(device, 4 * members.ranks.len());
            group.run(
                Collective::AllGather { input: own.region(0, 4), output: all.region(0, all.bytes()) },
                STREAM,
            )?;
            let ranks: Vec<_> = members.ranks.iter().map(|rank| *rank as f32).collect();
            assert_eq!(values::<f32>(device, &all, 0, ranks.len())?, ranks);
            if axes == [axis] {
                on_a_group(&group, device)?;
            }
        }
    }
    Ok(())
}

/// Returns a grid with the smallest size above 1 along an axis, and all other ranks along the next axis.
fn divided_along(axis: Axis, ranks: usize) -> GridShape {
    let size = (2..=ranks).find(|size| ranks.is_multiple_of(*size)).unwrap_or(1);
    let next = Axis::ALL.into_iter().cycle().skip_while(|other| *other != axis).nth(1).unwrap_or(axis);
    let grid = GridShape::from_sizes(|_| 1).with_size(axis, size);
    grid.filled_along(next, ranks).unwrap_or(grid)
}

/// Rows of a grid pass values along while columns gather values. Ranks differ in the order of their first
/// calls.
fn groups_work_side_by_side(communicator: &mut Communicator, device: &Device) -> Outcome<()> {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    let rows: Vec<_> = (0..world_size).step_by(2).map(|r| (r..world_size.min(r + 2)).collect()).collect();
    let columns = by_parity(world_size);
    let row = communicator.divide(&rows)?;
    let column = communicator.divide(&columns)?;
    row.warm_up(&[Collective::peer(0), Collective::peer(row.world_size() - 1)])?;
    column.warm_up(&[Collective::all_gather()])?;
    let mut expected = communicator.traffic();
    for count in COUNTS {
        let bytes = 4 * count;
        let (passed, own) =
            (filled::<f32>(device, &inputs(rank, count)), filled::<f32>(device, &inputs(rank, count)));
        let all = buffer(device, bytes * column.world_size());
        for _ in 0..3 {
            let pass = || match (row.rank(), row.world_size()) {
                (0, 2) => {
                    row.run(Collective::Send { to: 1, region: passed.region(0, bytes) }, StreamKind::Transfer)
                }
                (1, _) => row.run(
                    Collective::Receive { from: 0, region: passed.region(0, bytes) },
                    StreamKind::Transfer,
                ),
                _ => Ok(()),
            };
            let gather = || {
                column.run(
                    Collective::AllGather { input: own.region(0, bytes), output: all.region(0, all.bytes()) },
                    STREAM,
                )
            };
            if rank.is_multiple_of(2) {
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
    let rank = communicator.rank();
    let world_size = communicator.world_size();
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

/// Each rank is late once, on both channels; no rank continues before it has arrived.
fn barriers_wait(communicator: &mut Communicator, come: &[AtomicUsize; 2]) -> Outcome<()> {
    let world_size = communicator.world_size();
    for late in 0..world_size {
        for (channel, come) in come.iter().enumerate() {
            if communicator.rank() == late {
                std::thread::sleep(Duration::from_millis(2));
            }
            come.fetch_add(1, Ordering::SeqCst);
            if channel == 0 {
                communicator.control.barrier()?;
            } else {
                communicator.group.run(Collective::Barrier, STREAM)?;
                communicator.group.synchronize(STREAM)?;
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
        let come = [const { AtomicUsize::new(0) }; 2];
        for outcome in common::tcp::run_over_tcp(world_size, PATIENCE, |c, _| barriers_wait(c, &come)) {
            outcome.unwrap();
        }
    }
}

/// Checks of every transport.
const CHECKS: [(&str, Check); 5] = [
    ("on the group of all ranks", |communicator, device| on_a_group(&communicator.group, device)),
    ("on_groups", on_groups),
    ("on_every_axis", on_every_axis),
    ("groups_work_side_by_side", groups_work_side_by_side),
    ("control_messages_arrive_whole", control_messages_arrive_whole),
];

#[test]
fn solo_and_over_threads_and_tcp() {
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

/// Ranks that share a GPU pass the same checks, with sums in this crate's order.
#[test]
fn over_a_shared_gpu() {
    if !shared_gpu::there_is_one() {
        return;
    }
    for world_size in shared_gpu::WORLDS {
        for settings in SETTINGS {
            let outcome =
                shared_gpu::run_on_one_gpu(world_size, PATIENCE, settings, |communicator, device| {
                    CHECKS.iter().try_for_each(|(name, check)| {
                        check(communicator, device).map_err(|error| Failed::Other(format!("{name}: {error}")))
                    })
                });
            outcome.unwrap_or_else(|error| panic!("{world_size} ranks, {settings}: {error}"));
        }
        let come = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let body = move |c: &mut Communicator, _: &Device| barriers_wait(c, &come);
        let outcome = shared_gpu::run_on_one_gpu(world_size, PATIENCE, "", body);
        outcome.unwrap_or_else(|error| panic!("{world_size} ranks: {error}"));
    }
}

/// Ranks whose first calls with each other differ in kind still connect without a warm-up.
#[test]
fn first_calls_over_nccl_may_differ_in_form() {
    let Some(gpus) = gpus() else { return };
    let outcome = run(gpus.largest_world, Options::default(), |communicator| {
        let device = common::nccl::gpu(communicator.rank(), communicator.rank(), "")?;
        let communicator = communicator.over_nccl(&device, PATIENCE)?;
        exchange_matches_plain_sends_and_receives(&communicator.group, &device)?;
        sends_and_receives_pass_values_along(&communicator.group, &device)
    });
    outcome.unwrap();
}

/// The same checks for processes connected over TCP.
#[cfg(test)]
mod tcp {
    use collective::{Collective, Communicator, World};
    use device::Device;

    use super::{CHECKS, PATIENCE, common, gpus};

    fn hold(ranks: usize, test: &str) {
        let output = common::tcp::launched(ranks, test, "");
        let text = common::mpi::text(&output);
        assert!(output.status.success(), "{ranks} ranks: {text}");
        assert_eq!(text.matches("every check held").count(), ranks, "{text}");
    }

    fn check_all(world: World, mut communicator: Communicator, device: &Device) {
        for (name, check) in CHECKS {
            check(&mut communicator, device).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        drop(communicator);
        world.finish().unwrap();
        println!("every check held");
    }

    #[test]
    fn over_tcp_between_processes() {
        hold(3, "conformance::tcp::one_rank");
    }

    #[test]
    #[ignore = "one process of a job that over_tcp_between_processes starts"]
    fn one_rank() {
        let (world, communicator) = common::tcp::join(PATIENCE);
        let device = common::cpu(world.rank());
        check_all(world, communicator, &device);
    }

    #[test]
    fn over_tcp_and_nccl() {
        let Some(gpus) = gpus() else { return };
        (2..=gpus.largest_world).for_each(|ranks| hold(ranks, "conformance::tcp::one_rank_on_a_gpu"));
    }

    #[test]
    #[ignore = "one process of a job that over_tcp_and_nccl starts"]
    fn one_rank_on_a_gpu() {
        let (world, communicator) = common::tcp::join(PATIENCE);
        let device = common::nccl::gpu(world.rank(), world.local().0, "expandable_segments:True").unwrap();
        let communicator = communicator.over_nccl(&device, PATIENCE).unwrap();
        communicator.group.warm_up(&Collective::everything(world.size())).unwrap();
        check_all(world, communicator, &device);
    }
}

#[cfg(feature = "mpi")]
mod mpi {
    use collective::Collective;

    use super::{CHECKS, PATIENCE, common, gpus};

    #[test]
    fn over_mpi_and_nccl() {
        let Some(gpus) = gpus() else { return };
        for ranks in 2..=gpus.largest_world {
            let Some(output) = common::mpi::launched(ranks, "conformance::mpi::one_rank_on_a_gpu", "") else {
                return;
            };
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
        communicator.group.warm_up(&Collective::everything(world.size())).unwrap();
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
            let Some(output) = common::mpi::launched(ranks, "conformance::mpi::one_rank", "") else { return };
            let text = common::mpi::text(&output);
            assert!(output.status.success(), "{ranks} ranks: {text}");
            assert_eq!(text.matches("every check held").count(), ranks, "{text}");
        }
    }

    #[test]
    #[ignore = "one process of a job that over_mpi starts"]
    fn one_rank() {
        let (world, mut communicator) = collective::mpi::start(std::time::Duration::from_secs(600)).unwrap();
        let device = common::cpu(world.rank());
        for (name, check) in CHECKS {
            check(&mut communicator, &device).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        drop(communicator);
        world.finish().unwrap();
        println!("every check held");
    }
}
