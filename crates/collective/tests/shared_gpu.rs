//! Ranks that share a GPU: rejected devices, memory use, and how waits end if a rank does not arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::nccl::PATIENCE;
use crate::common::shared_gpu::{run_on_one_gpu, there_is_one};
use crate::common::{Failed, Outcome, STREAM, buffer, cpu, filled, first_error, meta, values};
use collective::threads::{Options, run};
use collective::{Collective, Communicator};
use device::{DType, Device};

#[test]
fn devices_that_are_no_gpu_and_processes_are_refused() {
    let outcome = run(2, Options::default(), |communicator| -> Outcome<()> {
        let device = cpu(communicator.rank());
        communicator.over_shared_gpu(&device)?;
        Ok(())
    });
    let (_, text) = first_error(outcome);
    assert!(text.contains("connect #0: ranks share a GPU; cpu is not one"), "{text}");
    let error = Communicator::counted(0, 2).over_shared_gpu(&meta(0)).unwrap_err().to_string();
    assert!(error.contains("cpu is not one"), "{error}");
    let solo = Communicator::solo().over_shared_gpu(&cpu(0)).unwrap();
    let buffer = filled(&cpu(0), &[1.5f32]);
    solo.group.run(Collective::AllReduce { region: buffer.region(0, 4), dtype: DType::F32 }, STREAM).unwrap();
}

#[test]
fn nothing_is_allocated_and_host_memory_is_refused() {
    if !there_is_one() {
        return;
    }
    let outcome = run_on_one_gpu(2, PATIENCE, "", |communicator, device| {
        let before = device.statistics().allocated();
        let operand = filled(device, &[1.0f32; 3]);
        communicator
            .group
            .run(Collective::AllReduce { region: operand.region(0, 12), dtype: DType::F32 }, STREAM)?;
        assert_eq!(values::<f32>(device, &operand, 0, 3)?, [2.0; 3]);
        drop(operand);
        assert_eq!(device.statistics().allocated(), before);
        let host = buffer(&cpu(communicator.rank()), 4);
        let refused = communicator
            .group
            .run(Collective::AllReduce { region: host.region(0, 4), dtype: DType::F32 }, STREAM);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("ranks that share a GPU move its regions"), "{text}");
        Ok(())
    });
    outcome.unwrap();
}

/// Owners overwrite their memory as soon as a call returns, while the GPU is busy with earlier work.
#[test]
fn memory_is_not_overwritten_before_others_have_read_it() {
    const COUNT: usize = 1 << 20;
    if !there_is_one() {
        return;
    }
    for ranks in [2, 4, 5] {
        let outcome = run_on_one_gpu(ranks, PATIENCE, "", move |communicator, device| {
            let rank = communicator.rank();
            let operand = buffer(device, 4 * COUNT);
            let all = buffer(device, 4 * COUNT * ranks);
            let whole = operand.region(0, 4 * COUNT);
            for round in 0..20 {
                let own = vec![(rank + round) as f32; COUNT];
                device.copy_from_host_on(&own, whole, STREAM)?;
                communicator.group.run(
                    Collective::AllGather { input: whole, output: all.region(0, all.bytes()) },
                    STREAM,
                )?;
                device.copy_from_host_on(&vec![-1.0f32; COUNT], whole, STREAM)?;
                if round % 5 == 4 {
                    for (from, part) in
                        values::<f32>(device, &all, 0, COUNT * ranks)?.chunks(COUNT).enumerate()
                    {
                        assert!(part.iter().all(|actual| *actual == (from + round) as f32), "round {round}");
                    }
                }
            }
            Ok(())
        });
        outcome.unwrap();
    }
}

/// A call in which a rank is missing.
type Call = fn(&mut Communicator, &Device) -> Outcome<()>;

const CALLS: [Call; 3] = [
    |communicator, _| Ok(communicator.group.run(Collective::Barrier, STREAM)?),
    |communicator, device| {
        let sums = buffer(device, 1 << 20);
        Ok(communicator
            .group
            .run(Collective::AllReduce { region: sums.region(0, sums.bytes()), dtype: DType::F32 }, STREAM)?)
    },
    |communicator, device| {
        let left = buffer(device, 4);
        match communicator.rank() {
            0 => Ok(communicator.group.run(Collective::Send { to: 1, region: left.region(0, 4) }, STREAM)?),
            _ => Ok(communicator
                .group
                .run(Collective::Receive { from: 1, region: left.region(0, 4) }, STREAM)?),
        }
    },
];

#[test]
fn a_rank_that_stops_or_fails_is_named_and_the_device_stays_usable() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    if !there_is_one() {
        return;
    }
    for (call, fails) in CALLS.into_iter().flat_map(|call| [(call, true), (call, false)]) {
        let over = Arc::new(AtomicUsize::new(0));
        let timeout = if fails { PATIENCE } else { TIMEOUT };
        let outcome = run_on_one_gpu(3, timeout, "", move |communicator, device| {
            let memory = filled(device, &[communicator.rank() as f32]);
            communicator.group.run(Collective::Barrier, STREAM)?;
            communicator.group.synchronize(STREAM)?;
            let began = Instant::now();
            if communicator.rank() == 1 {
                if fails {
                    return Err(Failed::Other("disk full".to_owned()));
                }
                while over.load(Ordering::SeqCst) < 2 && began.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Ok(());
            }
            let message = call(communicator, device).unwrap_err().to_string();
            let expected = if fails { "rank 1 failed: disk full" } else { "rank 1 did not answer within 1." };
            assert!(message.contains(expected), "{message}");
            assert_eq!(values::<f32>(device, &memory, 0, 1)?, [communicator.rank() as f32]);
            over.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        match outcome {
            Ok(_) => assert!(!fails),
            Err(error) => assert!(fails && error.to_string().contains("disk full"), "{error}"),
        }
    }
}
