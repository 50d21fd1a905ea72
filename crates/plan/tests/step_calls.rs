//! The calls of a step, logged on Meta.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod common;

use std::collections::BTreeMap;

use collective::Communicator;
use common::{GPT, of};
use device::{CallLog, LoggedCall, LoggedKernel, Statistics};
use worker::{Setup, Worker};

struct Ran {
    log: CallLog,
    /// FLOPs of matmuls and attention that operators counted in the step.
    flops: u64,
    statistics: Statistics,
}

fn run(setup: &Setup, logs: bool) -> Ran {
    let communicator = Communicator::counted(0, setup.config.world_size());
    let mut worker = Worker::new(&setup.on_meta(), communicator).unwrap();
    let device = worker.device().clone();
    for step in 0..2 {
        if logs {
            device.begin_log();
        }
        worker.step(step).unwrap();
    }
    if logs {
        device.begin_log();
    }
    let before = device.flops();
    worker.step(2).unwrap();
    Ran { flops: device.flops() - before, log: device.end_log(), statistics: device.statistics() }
}

#[test]
fn show() {
    for sets in [&["train.global_batch_size=4"][..], &["train.global_batch_size=4", "parallel.data=2", "parallel.lanes=2"], &["parallel.pipeline=2","train.global_batch_size=4"]] {
        let setup = of(GPT, true, sets);
        let ran = run(&setup, true);
        for call in &ran.log.calls {
            match call {
                LoggedCall::Kernel(LoggedKernel { function, grid, threads, stream, work, .. }) => {
                    println!("{function} {grid:?} {threads} {stream:?} {work:?}")
                }
                other => println!("{other:?}"),
            }
        }
        println!("{:?} {:?}", ran.log.flops(), ran.flops);
        println!("{}", ran.statistics == run(&setup, false).statistics);
    }
}
