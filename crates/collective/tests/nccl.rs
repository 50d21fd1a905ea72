//! GPUs over NCCL: rejected calls, memory use, and how waits end if a rank does not arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::nccl::{PATIENCE, SETTINGS, gpu, gpus, run_on_gpus};
use crate::common::{Failed, Outcome, STREAM, buffer, cpu, filled, first_error, values};
use collective::threads::{Options, run};
use collective::{
    CallKind, Collective, CollectiveError, Communicator, PeerAccess, PeerAccessOptions, RankTree, SharedSum,
    SumKernels, nccl,
};
use device::{Backend, DType, Description, Device, DeviceOptions, Kind};

/// Creates a Meta device that imitates a GPU.
fn imagined_gpu(rank: usize) -> Device {
    let description = Description {
        kind: Kind::Cuda,
        name: "imagined".to_owned(),
        model: "imagined".to_owned(),
        total_bytes: 1 << 34,
        taken_bytes: 0,
        granularity: 2 << 20,
        compute_capability: (9, 0),
        multiprocessors: 132,
        peers: 0,
        libraries: String::new(),
    };
    Device::meta(rank, description, &DeviceOptions::default()).unwrap()
}

#[test]
fn an_installed_library_has_a_version() {
    match nccl::version() {
        Some(version) => {
            assert!(nccl::is_there());
            assert!(version.starts_with("2.") && version.split('.').count() == 3, "{version}");
        }
        None => assert!(!nccl::is_there()),
    }
}

#[test]
fn a_world_of_one_is_unchanged() {
    let device = cpu(0);
    let solo = Communicator::solo().over_nccl(&device, PATIENCE).unwrap();
    let buffer = filled(&device, &[1.5f32]);
    solo.group.run(Collective::AllReduce { region: buffer.region(0, 4), dtype: DType::F32 }, STREAM).unwrap();
    solo.group.warm_up(&Collective::everything(1)).unwrap();
    assert_eq!(values::<f32>(&device, &buffer, 0, 1).unwrap(), [1.5]);
}

#[test]
fn a_cpu_device_is_refused() {
    let outcome = run(2, Options::default(), |communicator| -> Outcome<()> {
        let device = cpu(communicator.rank());
        communicator.over_nccl(&device, PATIENCE)?;
        Ok(())
    });
    let (_, text) = first_error(outcome);
    assert!(text.contains("connect #0: NCCL connects GPUs; cpu is not one"), "{text}");
}

/// Returns the device bytes allocated by connecting.
fn taken(communicator: Communicator, device: &Device) -> Outcome<u64> {
    let before = device.statistics().allocated();
    let communicator = communicator.over_nccl(device, PATIENCE)?;
    communicator.group.warm_up(&[Collective::all_gather()])?;
    let taken = device.statistics().allocated() - before;
    drop(communicator);
    assert_eq!(device.statistics().allocated(), before);
    Ok(taken)
}

#[test]
fn plans_and_runs_take_the_same_memory() {
    let counted = taken(Communicator::counted(1, 2), &imagined_gpu(1)).unwrap();
    assert!(counted > 0);
    let imagined = run(2, Options::default(), |communicator| {
        let device = imagined_gpu(communicator.rank());
        taken(communicator, &device)
    });
    assert_eq!(imagined.unwrap(), [counted; 2]);
    if let Some(_gpus) = gpus() {
        let real = run(2, Options::default(), |communicator| {
            let device = gpu(communicator.rank(), communicator.rank(), "")?;
            taken(communicator, &device)
        });
        assert_eq!(real.unwrap(), [counted; 2]);
    }
}

#[test]
fn transports_refuse_regions_of_other_devices() {
    let Some(_gpus) = gpus() else { return };
    let outcome = run_on_gpus(2, PATIENCE, "", |communicator, device| {
        let host = cpu(communicator.rank());
        let on_host = communicator
            .group
            .run(Collective::AllReduce { region: buffer(&host, 4).region(0, 4), dtype: DType::F32 }, STREAM);
        let text = on_host.unwrap_err().to_string();
        assert!(text.contains("all-reduce #0: NCCL moves GPU regions"), "{text}");
        assert_eq!(device.backend(), Backend::Cuda);
        Ok(())
    });
    outcome.unwrap();
    let outcome = run(2, Options::default(), |communicator| -> Outcome<()> {
        let device = gpu(communicator.rank(), communicator.rank(), "")?;
        communicator
            .group
            .run(Collective::Broadcast { root: 0, region: buffer(&device, 4).region(0, 4) }, STREAM)?;
        Ok(())
    });
    let (_, text) = first_error(outcome);
    assert!(text.contains("broadcast #0: GPU regions need NCCL"), "{text}");
}

/// A wait for a rank that does not arrive, in the world's group or a group split off, or a wait for the
/// device.
type Wait = fn(&mut Communicator, &Device) -> Outcome<()>;

const WAITS: [Wait; 3] = [
    |communicator, _| {
        communicator.group.run(Collective::Barrier, STREAM)?;
        Ok(communicator.group.synchronize(STREAM)?)
    },
    |communicator, device| {
        let sums = buffer(device, 1 << 20);
        communicator
            .group
            .run(Collective::AllReduce { region: sums.region(0, sums.bytes()), dtype: DType::F32 }, STREAM)?;
        values::<f32>(device, &sums, 0, 1).map(drop)
    },
    |communicator, device| {
        let left = buffer(device, 4);
        communicator.group.run(Collective::Receive { from: 1, region: left.region(0, 4) }, STREAM)?;
        Ok(communicator.group.synchronize(STREAM)?)
    },
];

/// Returns the errors of calls after the end. All must equal the first error.
fn later(communicator: &mut Communicator, device: &Device) -> Vec<CollectiveError> {
    let small = buffer(device, 4);
    let all = vec![(0..communicator.world_size()).collect()];
    let region = small.region(0, 4);
    let data = &mut communicator.group;
    let answers = [
        data.run(Collective::AllReduce { region, dtype: DType::F32 }, STREAM).err(),
        data.run(Collective::Send { to: 1, region }, STREAM).err(),
        data.run(Collective::Barrier, STREAM).err(),
        data.synchronize(STREAM).err(),
        data.split(&all).err(),
        data.warm_up(&[Collective::all_reduce(DType::F32)]).err(),
    ];
    answers.into_iter().map(Option::unwrap).collect()
}

#[test]
fn a_rank_that_stops_is_a_timeout_that_names_it() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let Some(gpus) = gpus() else { return };
    let world_size = gpus.largest_world;
    for wait in WAITS {
        let over = Arc::new(AtomicUsize::new(0));
        let outcome = run_on_gpus(world_size, TIMEOUT, "", move |communicator, device| {
            communicator.group.run(Collective::Barrier, STREAM)?;
            communicator.group.synchronize(STREAM)?;
            if communicator.rank() == 1 {
                while over.load(Ordering::SeqCst) < world_size - 1 {
                    std::thread::sleep(Duration::from_millis(10));
                }
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
            // Allocated before the call, because memory of an abandoned call may still be written.
            let memory = buffer(device, 4);
            let message = wait(communicator, device).unwrap_err().to_string();
            assert!(message.contains("rank 1 did not answer within 3."), "{message}");
            for error in later(communicator, device) {
                assert!(matches!(error, CollectiveError::Timeout { peer: 1, .. }), "{error}");
            }
            // The device itself stays usable.
            device.copy_from_host(&[communicator.rank() as f32], memory.region(0, 4))?;
            assert_eq!(values::<f32>(device, &memory, 0, 1)?, [communicator.rank() as f32]);
            over.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        outcome.unwrap();
    }
}

#[test]
fn a_rank_that_fails_ends_the_waits_of_the_others() {
    let Some(gpus) = gpus() else { return };
    let world_size = gpus.largest_world;
    for wait in WAITS {
        for says_so in [true, false] {
            let (sender, received) = std::sync::mpsc::channel();
            let outcome = run_on_gpus(world_size, PATIENCE, "", move |communicator, device| {
                communicator.group.run(Collective::Barrier, STREAM)?;
                communicator.group.synchronize(STREAM)?;
                if communicator.rank() == 1 {
                    std::thread::sleep(Duration::from_millis(50));
                    if says_so {
                        communicator.control.fail("disk full");
                    }
                    return Err(Failed::Other("disk full".to_owned()));
                }
                let failed = wait(communicator, device).unwrap_err().to_string();
                let _ = sender.send((failed, later(communicator, device)));
                Ok(())
            });
            let (rank, text) = first_error(outcome);
            assert_eq!((rank, &*text), (1, "disk full"));
            let received: Vec<_> = received.iter().collect();
            assert_eq!(received.len(), world_size - 1);
            for (failed, later) in received {
                assert!(failed.contains("rank 1 failed: disk full"), "{failed}");
                for error in later {
                    assert!(matches!(error, CollectiveError::PeerFailed { peer: 1, .. }), "{error}");
                }
            }
        }
    }
}

/// The first calls of a communicator connect its ranks, on the host.
#[test]
fn calls_that_connect_end_if_a_rank_is_missing() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let Some(gpus) = gpus() else { return };
    let world_size = gpus.largest_world;
    for (fails, wait) in [true, false].into_iter().flat_map(|fails| WAITS.map(|wait| (fails, wait))) {
        let over = Arc::new(AtomicUsize::new(0));
        let options = Options { timeout: PATIENCE, grace: Duration::from_secs(20) };
        let outcome = run(world_size, options, move |communicator| -> Outcome<()> {
            let device = gpu(communicator.rank(), communicator.rank(), "")?;
            let mut communicator = communicator.over_nccl(&device, TIMEOUT)?;
            let memory = buffer(&device, 4);
            let began = Instant::now();
            if communicator.rank() == 1 {
                if fails {
                    std::thread::sleep(Duration::from_millis(200));
                    communicator.control.fail("disk full");
                }
                while over.load(Ordering::SeqCst) < world_size - 1 && began.elapsed() < 6 * TIMEOUT {
                    std::thread::sleep(Duration::from_millis(10));
                }
                return Ok(());
            }
            let message = wait(&mut communicator, &device).unwrap_err().to_string();
            let expected = if fails { "rank 1 failed: disk full" } else { "rank 1 did not answer within 3." };
            assert!(message.contains(expected), "{message}");
            assert_eq!(later(&mut communicator, &device).len(), 6);
            // The device itself stays usable.
            device.copy_from_host(&[5.0f32], memory.region(0, 4))?;
            assert_eq!(values::<f32>(&device, &memory, 0, 1)?, [5.0]);
            over.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        match outcome {
            Ok(_) => {}
            // The error of a rank that returns.
            Err(error) => assert!(fails && error.to_string().contains("disk full"), "{error}"),
        }
    }
}

/// A rank misses a sum in shared memory, because it stopped, ended or failed.
#[test]
fn waits_in_shared_memory_end_if_a_rank_is_missing() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let Some(gpus) = gpus() else { return };
    let world_size = gpus.largest_world;
    for (fails, settings) in [(true, SETTINGS[1]), (false, SETTINGS[1]), (true, SETTINGS[0])] {
        let over = Arc::new(AtomicUsize::new(0));
        let outcome = run_on_gpus(world_size, TIMEOUT, settings, move |communicator, device| {
            let memory = buffer(device, 4);
            let sums = filled(device, &vec![1.0f32; 1 << 20]);
            let scratch = buffer(device, sums.bytes());
            let whole = sums.region(0, sums.bytes());
            let scratch = scratch.region(0, sums.bytes());
            let tree = &RankTree::balanced(world_size);
            let sum = SharedSum { region: whole, scratch, dtype: DType::F32, everywhere: true };
            let sum = Collective::SumShared { sums: vec![sum], tree: tree.clone(), alone: false };
            if let PeerAccess::Denied(_) = communicator.group.share(
                &[whole],
                PeerAccessOptions { sums: Some(SumKernels::OF_TREES), ..PeerAccessOptions::default() },
            )? {
                return Ok(());
            }
            assert!(communicator.group.try_run(sum.clone(), STREAM)?);
            communicator.group.synchronize(STREAM)?;
            let began = Instant::now();
            if communicator.rank() == 1 {
                if fails {
                    communicator.control.fail("disk full");
                }
                while over.load(Ordering::SeqCst) < world_size - 1 && began.elapsed() < 6 * TIMEOUT {
                    std::thread::sleep(Duration::from_millis(10));
                }
                return Ok(());
            }
            // Several sums wait, one behind the other.
            let summed = |communicator: &mut Communicator| -> Outcome<()> {
                for _ in 0..3 {
                    communicator.group.try_run(sum.clone(), STREAM)?;
                }
                Ok(communicator.group.synchronize(STREAM)?)
            };
            let message = summed(communicator).unwrap_err().to_string();
            let expected = if fails { "rank 1 failed: disk full" } else { "rank 1 did not answer within 3." };
            assert!(message.contains(expected), "{message}");
            assert!(communicator.group.try_run(sum.clone(), STREAM).is_err());
            // The device itself stays usable.
            device.copy_from_host(&[5.0f32], memory.region(0, 4))?;
            assert_eq!(values::<f32>(device, &memory, 0, 1)?, [5.0]);
            over.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        match outcome {
            Ok(_) => {}
            // The error of a rank that returns.
            Err(error) => assert!(fails && error.to_string().contains("disk full"), "{error}"),
        }
    }
}

#[test]
fn errors_in_a_group_name_ranks_of_the_world_and_groups_must_be_the_same() {
    let Some(_gpus) = gpus() else { return };
    let outcome = run_on_gpus(2, PATIENCE, "", |communicator, _| {
        let groups = if communicator.rank() == 0 { vec![vec![0, 1]] } else { vec![vec![0], vec![1]] };
        let error = communicator.group.split(&groups).map(drop).unwrap_err();
        let CollectiveError::Operand { call, problem, .. } = &error else { panic!("{error}") };
        assert_eq!((call.kind, call.sequence), (CallKind::Split, 0));
        assert!(problem.contains("has others"), "{problem}");
        let group = communicator.group.split(&[vec![1, 0]])?;
        assert_eq!(group.rank(), 1 - communicator.rank());
        if communicator.rank() == 1 {
            communicator.control.fail("corpus unreadable");
            return Err(Failed::Other("corpus unreadable".to_owned()));
        }
        group.run(Collective::Barrier, STREAM)?;
        let error = group.synchronize(STREAM).unwrap_err().to_string();
        assert!(error.starts_with("rank 0, ") && error.contains("rank 1 failed: corpus"), "{error}");
        Ok(())
    });
    let (rank, text) = first_error(outcome);
    assert_eq!((rank, &*text), (1, "corpus unreadable"));
}
