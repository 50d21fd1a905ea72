//! One rank without the others counts the bytes that it would move with them.

use crate::common::nccl::{PATIENCE, gpus, run_on_gpus};
use crate::common::{Outcome, STREAM, buffer, cpu, filled, meta};
use collective::threads::{Options, run};
use collective::{CallKind, Collective, Communicator, ProcessGroup, Traffic};
use device::{DType, Device};

/// Runs every collective in the group of all ranks and in a group split off.
fn work(communicator: &mut Communicator, device: &Device) -> Outcome<Traffic> {
    let own = work_on(&communicator.group, device)?;
    assert_eq!(communicator.traffic(), own);
    let world_size = communicator.world_size();
    let group = communicator.divide(&[(0..world_size).rev().skip(1).collect()])?;
    let mut both = communicator.group.traffic();
    both += work_on(&group, device)?;
    drop(group);
    assert_eq!(communicator.traffic(), both);
    Ok(both)
}

/// Runs every collective, with sizes that do not divide evenly, and returns the traffic.
fn work_on(data: &ProcessGroup, device: &Device) -> Outcome<Traffic> {
    let rank = data.rank();
    let world_size = data.world_size();
    let small = buffer(device, 4 * 7);
    let large = buffer(device, 4 * 7 * world_size);
    let part = small.region(0, small.bytes());
    let whole = large.region(0, large.bytes());
    let odd = buffer(device, 600_002);
    data.run(Collective::AllReduce { region: odd.region(0, 600_002), dtype: DType::Bf16 }, STREAM)?;
    data.run(Collective::AllReduce { region: part, dtype: DType::F32 }, STREAM)?;
    data.run(Collective::ReduceScatter { input: whole, output: part, dtype: DType::F32 }, STREAM)?;
    data.run(Collective::AllGather { input: part, output: whole }, STREAM)?;
    for root in 0..world_size {
        data.run(Collective::Broadcast { root, region: odd.region(0, 600_000) }, STREAM)?;
    }
    if rank.is_multiple_of(2) && rank + 1 < world_size {
        data.run(Collective::Send { to: rank + 1, region: part }, STREAM)?;
    } else if rank % 2 == 1 {
        data.run(Collective::Receive { from: rank - 1, region: part }, STREAM)?;
    }
    let peers: Vec<_> = (0..world_size).filter(|peer| *peer != rank).collect();
    let sends: Vec<_> = peers.iter().map(|peer| (*peer, odd.region(0, 300_000))).collect();
    let receives: Vec<_> = peers.iter().map(|peer| (*peer, large.region(28 * peer, 28))).collect();
    data.run(Collective::Exchange { sends: sends[..0].to_vec(), receives: Vec::new() }, STREAM)?;
    let shorter: Vec<_> = sends.iter().map(|(peer, region)| (*peer, region.part(0, 28))).collect();
    data.run(Collective::Exchange { sends: shorter, receives }, STREAM)?;
    data.run(Collective::Barrier, STREAM)?;
    Ok(data.traffic())
}

#[test]
fn threads_on_cpu_and_meta_and_counted_agree() {
    for world_size in 1..=5 {
        let real = run(world_size, Options::default(), |mut c| {
            let device = cpu(c.rank());
            work(&mut c, &device)
        });
        let imagined = run(world_size, Options::default(), |mut c| {
            let device = meta(c.rank());
            work(&mut c, &device)
        });
        let counted: Vec<_> = (0..world_size)
            .map(|rank| work(&mut Communicator::counted(rank, world_size), &meta(rank)).unwrap())
            .collect();
        assert_eq!(real.unwrap(), counted, "{world_size} ranks");
        assert_eq!(imagined.unwrap(), counted, "{world_size} ranks on Meta");
    }
}

#[test]
fn nccl_and_counted_agree() {
    let Some(gpus) = gpus() else { return };
    for world_size in 2..=gpus.largest_world {
        let real = run_on_gpus(world_size, PATIENCE, "", work);
        let counted: Vec<_> = (0..world_size)
            .map(|rank| work(&mut Communicator::counted(rank, world_size), &meta(rank)).unwrap())
            .collect();
        assert_eq!(real.unwrap(), counted, "{world_size} ranks");
    }
}

#[test]
fn traffic_is_by_operation() {
    let traffic = work_on(&Communicator::counted(1, 4).group, &meta(1)).unwrap();
    let reduced = traffic.get(CallKind::AllReduce);
    assert_eq!(reduced.calls, 2);
    // 300,001 elements in shards of 75,001, the last one shorter by 3; and 7 in shards of 2, 2, 2, 1.
    assert_eq!(reduced.bytes_sent, 2 * (300_001 + 2 * 75_001) + 4 * (7 + 2 * 2));
    assert_eq!(reduced.bytes_sent, reduced.bytes_received);
    assert_eq!(traffic.get(CallKind::Barrier).calls, 1);
    let total = traffic.total().bytes_sent;
    assert_eq!(total, CallKind::ALL.iter().map(|o| traffic.get(*o).bytes_sent).sum::<u64>());
}

#[test]
fn a_counted_rank_gets_its_own_values_back() {
    let device = cpu(2);
    let mut communicator = Communicator::counted(2, 3);
    let mut message = vec![7];
    communicator.control.broadcast(0, &mut message).unwrap();
    assert_eq!(message, [7]);
    assert_eq!(communicator.control.all_gather(&[1, 2]).unwrap(), [[1, 2]; 3]);
    assert_eq!(communicator.control.gather(0, &[1]).unwrap(), None);
    assert_eq!(communicator.control.gather(2, &[1]).unwrap().unwrap(), [[1]; 3]);
    let own = filled(&device, &[1.5f32, 2.5]);
    let all = buffer(&device, 24);
    communicator
        .group
        .run(Collective::AllGather { input: own.region(0, 8), output: all.region(0, 24) }, STREAM)
        .unwrap();
    assert_eq!(*all.read::<f32>(0, 6).unwrap(), [1.5, 2.5, 1.5, 2.5, 1.5, 2.5]);
    communicator
        .group
        .run(Collective::AllReduce { region: own.region(0, 8), dtype: DType::F32 }, STREAM)
        .unwrap();
    assert_eq!(*own.read::<f32>(0, 2).unwrap(), [1.5, 2.5]);
}
