//! Tests of ranks that share an imitated GPU: the bytes of each rank and of the device, whether they fit, and
//! where the key has no effect.

use super::{json, planned};
use crate::common::jobs::{text, workplace};

const GRID: [&str; 3] = ["parallel.data=2", "parallel.pipeline=2", "parallel.ranks_per_device=4"];
const FIGURES: [&str; 4] =
    ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"];

#[test]
fn the_device_holds_all_ranks_and_one_context() {
    let directory = workplace();
    let on_gpu = |sets: &[&str], more: &[&str]| {
        planned(directory.path(), sets, &[&["--device", "cuda"], more].concat())
    };
    let shared = json(&on_gpu(&GRID, &["--json"]));
    let apart = json(&on_gpu(&GRID[..2], &["--json"]));
    let ranks = shared["ranks"].as_array().unwrap();
    let sum = |name: &str| ranks.iter().map(|rank| rank[name].as_u64().unwrap()).sum::<u64>();
    for name in FIGURES {
        assert_eq!(shared["shared_device"][name], sum(name), "{name}");
        assert!(apart["shared_device"].is_null());
    }
    // A rank with its own GPU also has NCCL's buffer.
    for (mine, theirs) in ranks.iter().zip(apart["ranks"].as_array().unwrap()) {
        let [mine, theirs] = [mine, theirs].map(|rank| rank["allocated_bytes"].as_u64().unwrap());
        assert_eq!(mine + (1 << 20), theirs);
    }
    let (fit, alone) = (&shared["fit"], &apart["fit"]);
    assert_eq!((&fit["ranks_on_a_device"], &alone["ranks_on_a_device"]), (&4.into(), &1.into()));
    assert_eq!(fit["needs_bytes"], sum("peak_reserved_bytes"));
    let part = |fit: &serde_json::Value, name: &str| {
        let parts = fit["overhead"].as_array().unwrap();
        parts.iter().find(|part| part["name"] == name).map_or(0, |part| part["bytes"].as_u64().unwrap())
    };
    assert_eq!(part(fit, "context"), part(alone, "context"));
    assert_eq!(part(fit, "modules"), 4 * part(alone, "modules"));
    assert_eq!(part(fit, "communicators"), 0);
    // The text has a separate row with the sums.
    let table = text(&on_gpu(&GRID, &[]).stdout);
    let row = table.lines().find(|line| line.starts_with("the device")).unwrap();
    assert!(row.contains(&telemetry::units::grouped(sum("peak_reserved_bytes"))), "{table}");
    assert!(table.contains("fits: its 4 ranks together need"), "{table}");
    // One byte less than all ranks together need is too little, although each rank alone would fit.
    let taken: u64 = fit["overhead"].as_array().unwrap().iter().map(|p| p["bytes"].as_u64().unwrap()).sum();
    let needs = taken + sum("peak_reserved_bytes");
    for (capacity, status) in [(needs, 0), (needs - 1, 1)] {
        let output = on_gpu(&GRID, &["--capacity", &capacity.to_string()]);
        assert_eq!(output.status.code(), Some(status), "{}", text(&output.stdout));
    }
    // A limit applies to each rank.
    let most = ranks.iter().map(|rank| rank["peak_reserved_bytes"].as_u64().unwrap()).max().unwrap();
    for (limit, status) in [(most, 0), (most - (2 << 20), 1)] {
        let limit = format!("memory.limit_bytes={limit}");
        let output = on_gpu(&[&GRID[..], &[&limit]].concat(), &[]);
        assert_eq!(output.status.code(), Some(status), "{}", text(&output.stdout));
    }
}

#[test]
fn more_ranks_than_may_share_a_gpu_are_refused_and_the_cpu_refuses_nothing() {
    let directory = workplace();
    let few = ["parallel.data=4", "parallel.ranks_per_device=2"];
    let refused = planned(directory.path(), &few, &["--device", "cuda"]);
    assert_eq!(refused.status.code(), Some(2));
    let reason = text(&refused.stderr);
    let expected =
        "--set parallel.ranks_per_device=2: parallel.ranks_per_device = 2 is fewer than the 4 ranks";
    assert!(reason.contains(expected) && reason.contains("set it to 4"), "{reason}");
    let host = planned(directory.path(), &few, &["--device", "cpu"]);
    assert_eq!(host.status.code(), Some(0));
    let message = text(&host.stdout);
    assert!(message.contains("parallel.ranks_per_device has no effect on the CPU"), "{message}");
    let plain = planned(directory.path(), &few[..1], &["--device", "cpu", "--json"]);
    let with_key = planned(directory.path(), &few, &["--device", "cpu", "--json"]);
    assert_eq!(json(&plain)["ranks"], json(&with_key)["ranks"]);
    let one = ["parallel.data=1", "parallel.ranks_per_device=2"];
    let message = text(&planned(directory.path(), &one, &["--device", "cuda"]).stdout);
    assert!(message.contains("parallel.ranks_per_device has no effect with one rank"), "{message}");
}
