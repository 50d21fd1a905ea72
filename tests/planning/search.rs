//! Tests of searches for configurations that fit: proposals, the nearest miss, and remedies.

use std::path::Path;

use serde_json::Value;

use super::{json, planned, plimsoll, text, workplace};

/// Describes a device without overhead, so that little memory suffices. Returns its file name.
pub(super) fn small_device(directory: &Path) -> &'static str {
    let shipped = include_str!("../../launch/devices/h200.toml");
    let without = shipped[..shipped.find("# Bytes of the device").unwrap()].to_owned();
    std::fs::write(directory.join("small.toml"), without).unwrap();
    "small.toml"
}

fn sets_of(proposal: &Value) -> Vec<&str> {
    proposal["set"].as_array().unwrap().iter().map(|set| set.as_str().unwrap()).collect()
}

#[test]
fn a_search_that_finds_nothing_names_the_nearest() {
    let directory = workplace();
    let device = small_device(directory.path());
    let search = ["--fit", "4MiB", "--ranks", "2", "--device", device];
    let output = planned(directory.path(), &["model.width=64"], &[&search[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let result = json(&output);
    let nearest = &json(&output)["nearest"];
    assert!(result["proposals"].as_array().unwrap().is_empty() && result["planned"].as_u64() > Some(1));
    // The stated need of the nearest candidate is exact.
    let sets = [&["model.width=64"][..], &sets_of(nearest)].concat();
    let plan = json(&planned(directory.path(), &sets, &["--json", "--device", device]));
    assert_eq!(plan["fit"]["needs_bytes"], nearest["peak_reserved_bytes"]);
    // Minus the page tables of offloaded tensors, if any.
    let available = nearest["available_bytes"].as_u64().unwrap();
    assert!((4_190_000..=4 << 20).contains(&available), "{available}");
    let printed = text(&planned(directory.path(), &["model.width=64"], &search).stdout);
    let changes = "\nchanges beside the nearest that alter results a little\n";
    for part in ["nothing fits: ", "; the nearest, --set ", " of 4.00 MiB: ", "(its own are ", changes] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    // The stated need of a change to the nearest candidate is exact, too.
    let changes = result["trades"].as_array().unwrap();
    assert!(changes.iter().any(|change| change["set"][0] == "optim.state=8bit"), "{changes:?}");
    for change in changes {
        let sets = [&sets[..], &sets_of(change)].concat();
        let plan = json(&planned(directory.path(), &sets, &["--json", "--device", device]));
        assert_eq!(plan["fit"]["needs_bytes"], change["peak_reserved_bytes"], "{change}");
    }
}

#[test]
fn the_bytes_to_fit_are_by_default_those_of_the_device() {
    let directory = workplace();
    let h100 = include_str!("../../launch/devices/h100-80gb.toml");
    std::fs::write(directory.path().join("h100.toml"), h100).unwrap();
    // Whether the widest model fits the device's own bytes but not 80 GiB, or the reverse, does not matter:
    // both include the same overhead.
    let search = ["--fit", "--ranks", "2", "--device", "h100.toml", "--json"];
    let result = json(&planned(directory.path(), &[], &search));
    assert_eq!(
        (&result["capacity_bytes"], &result["device_bytes"]),
        (&85017493504_u64.into(), &result["capacity_bytes"])
    );
    for proposal in result["proposals"].as_array().unwrap().iter().take(2) {
        let plan = json(&planned(directory.path(), &sets_of(proposal), &["--json", "--device", "h100.toml"]));
        assert_eq!(plan["fit"]["fits"], true);
        assert_eq!(plan["fit"]["needs_bytes"], proposal["peak_reserved_bytes"]);
        assert_eq!(plan["fit"]["available_bytes"], proposal["available_bytes"]);
    }
    let other = planned(directory.path(), &[], &["--fit", "80GiB", "--ranks", "2", "--device", "h100.toml"]);
    assert!(text(&other.stdout).contains("with 80.00 GiB (its own are 79.18 GiB"), "{}", text(&other.stdout));
    for (argument, size) in [("--fit", "80"), ("--capacity", "80"), ("--fit", "80KiB")] {
        let refused = planned(directory.path(), &[], &[argument, size]);
        let message = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{message}");
        assert!(message.contains(" bytes: write 80GiB or 80GB"), "{message}");
    }
}

/// Checks that a search chooses the lanes that its grids need, even if the configuration has too few.
#[test]
fn proposals_have_the_lanes_of_their_ranks() {
    let directory = workplace();
    let sets = ["train.global_batch_size=64", "parallel.data=16"];
    let refused = planned(directory.path(), &sets, &["--device", "cuda"]);
    let message = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("set parallel.lanes = 16, which decides the bits, on every grid"), "{message}");
    for (sets, ranks) in [(&sets[..], &[][..]), (&sets[..1], &["--ranks", "16"])] {
        let search = [&["--fit", "--device", "cuda", "--json"], ranks].concat();
        let output = planned(directory.path(), sets, &search);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let result = json(&output);
        let proposals = result["proposals"].as_array().unwrap();
        let raised = |proposal: &&Value| sets_of(proposal).contains(&"parallel.lanes=16");
        assert!(proposals.iter().any(|proposal| raised(&proposal)), "{result}");
        for proposal in proposals.iter().take(3) {
            let sets = [sets, &sets_of(proposal)].concat();
            let plan = json(&planned(directory.path(), &sets, &["--json", "--device", "cuda"]));
            assert_eq!((&plan["world_size"], &plan["grid"]), (&16.into(), &proposal["grid"]));
        }
    }
}

/// Returns the last line of a plan that does not fit, and the keys that it advises.
fn advice(directory: &Path, sets: &[&str], capacity: u64) -> (Vec<String>, String) {
    let capacity = capacity.to_string();
    let refused = planned(directory, sets, &["--device", "small.toml", "--capacity", &capacity]);
    let printed = text(&refused.stdout);
    let line = printed.trim_end().lines().last().unwrap_or_default().to_owned();
    let keys = line.split("--set ").skip(1).map(|set| set.split([' ', ',']).next().unwrap().to_owned());
    (keys.collect(), line)
}

#[test]
fn advice_keeps_the_ranks_or_says_how_many_it_needs() {
    let directory = workplace();
    small_device(directory.path());
    let needs = |sets: &[&str]| {
        let plan = planned(directory.path(), sets, &["--json", "--device", "small.toml"]);
        json(&plan)["fit"]["needs_bytes"].as_u64().unwrap()
    };
    let large =
        ["model.width=256", "model.layers=8", "train.micro_batch_size=1", "train.global_batch_size=8"];
    /// Grid, settings that save the most memory on it, expected advice, and whether the advice has more
    /// ranks.
    type Row = (&'static [&'static str], &'static [&'static str], &'static [&'static str], bool);
    const AWAY: &str = "memory.offload_weights=true";
    let table: [Row; 4] = [
        (&["lora.rank=4"], &["memory.recompute=block"], &["lora.base=nf4"], false),
        (&[], &["memory.recompute=block"], &["optim.offload=true"], false),
        (&[AWAY], &["memory.recompute=block"], &["memory.recompute=block", "parallel.pipeline=2"], true),
        (
            &["parallel.data=2", AWAY],
            &["memory.recompute=block", "parallel.zero_stage=3", "parallel.lanes=8"],
            &["parallel.zero_stage=3", "parallel.lanes=8", "memory.recompute=block", "parallel.pipeline=2"],
            false,
        ),
    ];
    for (grid, least, expected, consequence) in table {
        let sets = [&large[..], grid].concat();
        let (keys, line) = advice(directory.path(), &sets, needs(&[&sets[..], least].concat()) - 1);
        assert_eq!(keys, expected, "{line}");
        assert_eq!(line.contains(", on 2 ranks instead of 1 would need "), consequence, "{line}");
    }
}

/// Checks that a limit is compared with a rank's reserved bytes, both in the refusal and in its advice.
#[test]
fn advice_for_a_limit_is_below_it() {
    let directory = workplace();
    let large = ["model.width=256", "train.micro_batch_size=8", "train.global_batch_size=32"];
    let plan = json(&planned(directory.path(), &large, &["--json", "--device", "cpu"]));
    let limit = plan["ranks"][0]["peak_reserved_bytes"].as_u64().unwrap() - 1;
    let limited = format!("memory.limit_bytes={limit}");
    let sets = [&large[..], &[&limited]].concat();
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let train = ["train", "run.toml", "--device", "cpu", "--run-dir", "out"];
    let refused = plimsoll(directory.path()).args(train).args(sets).output().unwrap();
    let message = text(&refused.stderr);
    let advised = message.split("would need ").nth(1).unwrap_or_else(|| panic!("{message}"));
    let digits: String = advised.split(' ').next().unwrap().chars().filter(char::is_ascii_digit).collect();
    assert!(digits.parse::<u64>().unwrap() <= limit, "{message}");
}
