//! Connections are made before the first step, for exactly the operations that a step uses.

use crate::common::runs::{MLP, RESNET, config};
use collective::threads::{Options, run};
use collective::{CollectiveUse, Operation, Traffic};
use device::DType;
use parallel::data::{DataCollectives, Reduction};
use plan::prepare;
use worker::WorkerError;
use worker::{Placement, Worker};

/// Operation of a use.
fn named(using: &CollectiveUse) -> Operation {
    match using {
        CollectiveUse::AllReduce(_) => Operation::AllReduce,
        CollectiveUse::ReduceScatter(_) => Operation::ReduceScatter,
        CollectiveUse::AllGather => Operation::AllGather,
        CollectiveUse::Broadcast => Operation::Broadcast,
        CollectiveUse::Peer(_) => Operation::Exchange,
    }
}

fn traffic_of_steps(text: &str, reduction: &str, zero_stage: u32, ranks: usize) -> Traffic {
    let overrides = [
        &*format!("parallel.data={ranks}"),
        &format!("parallel.reduction={reduction:?}"),
        &format!("parallel.zero_stage={zero_stage}"),
    ];
    let setup = prepare(config(text, &overrides), Placement::Cpu).unwrap();
    let ranks = run(ranks, Options::default(), move |communicator| -> Result<Traffic, WorkerError> {
        let mut worker = Worker::new(&setup, communicator)?;
        (0..2).try_for_each(|step| worker.step(step))?;
        Ok(worker.communicator().traffic())
    });
    ranks.unwrap()[0]
}

#[test]
fn connections_cover_exactly_a_steps_traffic() {
    let table = [
        (MLP, "tree", Reduction::Tree, false),
        (MLP, "nccl", Reduction::Library, false),
        (RESNET, "tree", Reduction::Tree, true),
        (RESNET, "nccl", Reduction::Library, true),
    ];
    for (text, name, reduction, statistics) in table {
        // Two ranks with two lanes each, and three with one or two.
        for (zero_stage, ranks) in (0..=3).flat_map(|stage| [(stage, 2), (stage, 3)]) {
            let (even, peer_access, dtype) = (ranks == 2, false, DType::F32);
            let uses = DataCollectives { reduction, zero_stage, dtype, peer_access, statistics, even };
            let uses = uses.uses(ranks);
            let traffic = traffic_of_steps(text, name, zero_stage, ranks);
            let operations: Vec<Operation> =
                Operation::ALL.into_iter().filter(|operation| traffic.get(*operation).calls > 0).collect();
            assert!(!operations.is_empty());
            for operation in operations {
                let is_used = uses.iter().any(|using| named(using) == operation);
                assert!(is_used, "{name}, stage {zero_stage}: {operation:?} is not in {uses:?}");
            }
        }
    }
    let (reduction, dtype) = (Reduction::Tree, DType::F32);
    let (zero_stage, peer_access, statistics, even) = (1, true, false, true);
    let tree = DataCollectives { reduction, zero_stage, dtype, peer_access, statistics, even };
    assert!(tree.uses(1).is_empty());
    // With peer access only the norm's sums need connections.
    assert_eq!(tree.uses(2), [CollectiveUse::AllReduce(DType::F32)]);
    assert!(DataCollectives { zero_stage: 0, ..tree }.uses(4).is_empty());
    // Running statistics are gathered.
    assert_eq!(
        DataCollectives { zero_stage: 0, statistics: true, ..tree }.uses(4),
        [CollectiveUse::AllGather]
    );
    assert_eq!(
        DataCollectives { zero_stage: 0, statistics: true, even: false, ..tree }.uses(3),
        [0, 1, 2].map(CollectiveUse::Peer)
    );
}
