//! Tests that connections are made before the first step, for exactly the operations that a step uses.

use crate::common::runs::{MLP, RESNET, config};
use collective::threads::{Options, run};
use collective::{CallKind, Collective, Traffic};
use device::DType;
use parallel::data::{DataCollectives, Reduction};
use plan::prepare;
use worker::WorkerError;
use worker::{Placement, Worker};

/// Returns the kind of calls that an operation makes.
fn kind(using: &Collective<()>) -> CallKind {
    if using.peer_rank().is_some() { CallKind::Exchange } else { using.kind() }
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
        // Two ranks with two lanes each, and three ranks with one or two lanes.
        for (zero_stage, ranks) in (0..=3).flat_map(|stage| [(stage, 2), (stage, 3)]) {
            let even = ranks == 2;
            let peer_access = false;
            let dtype = DType::F32;
            let uses = DataCollectives { reduction, zero_stage, dtype, peer_access, statistics, even };
            let uses = uses.uses(ranks);
            let traffic = traffic_of_steps(text, name, zero_stage, ranks);
            let kinds: Vec<CallKind> =
                CallKind::ALL.into_iter().filter(|kind| traffic.get(*kind).calls > 0).collect();
            assert!(!kinds.is_empty());
            for used in kinds {
                let is_listed = uses.iter().any(|using| kind(using) == used);
                assert!(is_listed, "{name}, stage {zero_stage}: {used:?} is not in {uses:?}");
            }
        }
    }
    let reduction = Reduction::Tree;
    let dtype = DType::F32;
    let (zero_stage, peer_access, statistics, even) = (1, true, false, true);
    let tree = DataCollectives { reduction, zero_stage, dtype, peer_access, statistics, even };
    assert!(tree.uses(1).is_empty());
    // With peer access only the norm's sums need connections.
    assert_eq!(tree.uses(2), [Collective::all_reduce(DType::F32)]);
    assert!(DataCollectives { zero_stage: 0, ..tree }.uses(4).is_empty());
    // Running statistics are gathered.
    assert_eq!(
        DataCollectives { zero_stage: 0, statistics: true, ..tree }.uses(4),
        [Collective::all_gather()]
    );
    assert_eq!(
        DataCollectives { zero_stage: 0, statistics: true, even: false, ..tree }.uses(3),
        [0, 1, 2].map(Collective::peer)
    );
}
