//! Tests of profile files, and of the partitions that follow from them.

use std::path::Path;

use super::*;
use crate::costs::{Costs, with_recompute};
use crate::prepare::prepare;
use crate::recompute;
use crate::roles::plan_within;
use config::RecomputePolicy;
use worker::Placement;
use worker::Setup;

fn config(sets: &[&str]) -> RunConfig {
    let mut small = vec!["train.micro_batch_size=1", "train.global_batch_size=4", "data.kind=synthetic"];
    if !sets.contains(&"model.kind=mlp") {
        small.extend(["model.width=32", "model.context=16"]);
    }
    let sets: Vec<String> = small.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    RunConfig::parse("", "test.toml", Path::new("/"), &sets).unwrap()
}

/// Returns a profile of `layers` equal layers; the head takes as long as `head` layers.
fn profile(layers: usize, head: u64, config: &RunConfig) -> Profile {
    let layer = |count: usize, times: u64| LayerTimes {
        count,
        forward: 3 * times,
        backward_input: 4 * times,
        backward_weight: 3 * times,
        recomputed: 3,
        update: 0,
    };
    Profile {
        device: Description::host().model,
        libraries: String::new(),
        of: config.timing(),
        layers: vec![layer(layers - 1, 1), layer(1, 1 + head)],
    }
}

/// Returns the number of layers of each stage, with a profile changed by `change`.
fn stages(sets: &[&str], change: impl Fn(&mut Profile)) -> Vec<usize> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("times.toml");
    let config = config(&[&["model.layers=8"], sets].concat());
    let mut profile = profile(8, 2, &config);
    change(&mut profile);
    std::fs::write(&path, profile.to_toml().unwrap()).unwrap();
    let config = config.with(&[format!("parallel.profile={}", path.display())]).unwrap();
    let setup = prepare(config, Placement::Cpu).unwrap();
    setup.blueprint.stages.iter().map(|stage| stage.layers.len()).collect()
}

#[test]
fn stages_follow_the_times() {
    let nothing = |_: &mut Profile| {};
    let first = |times: fn(&mut LayerTimes)| {
        move |profile: &mut Profile| {
            // The first layer is separate from the layers after it.
            let LayerTimes { count, .. } = profile.layers[0];
            let mut layer = LayerTimes { count: 1, ..profile.layers[0] };
            profile.layers[0].count = count - 1;
            times(&mut layer);
            profile.layers.insert(0, layer);
        }
    };
    for (sets, counts) in [
        (&["parallel.pipeline=2"][..], &[5, 3][..]),
        (&["parallel.pipeline=4"], &[2, 2, 3, 1]),
        (&["parallel.pipeline=8"], &[1; 8]),
        (&["parallel.pipeline=2", "parallel.schedule=interleaved"], &[2, 2, 3, 1]),
        (&["parallel.pipeline=2", "parallel.data=2", "parallel.schedule=gpipe"], &[5, 3]),
        // A single rank has all layers, whatever the times.
        (&[], &[8]),
    ] {
        assert_eq!(stages(sets, nothing), counts, "{sets:?}");
    }
    // A slow embedding; then an optimizer whose time matters in a step of four micro-batches, and half as
    // much on each of two ranks with sharded state.
    let two = ["parallel.pipeline=2"];
    assert_eq!(stages(&two, first(|layer| layer.forward += 40)), [3, 5]);
    assert_eq!(stages(&two, first(|layer| layer.update = 4 * 40)), [3, 5]);
    let owners = ["parallel.pipeline=2", "parallel.data=2", "parallel.zero_stage=1"];
    assert_eq!(stages(&owners, first(|layer| layer.update = 4 * 40)), [3, 5]);
    assert_eq!(stages(&owners, first(|layer| layer.update = 4 * 20)), [4, 4]);
    // Recomputed layers: all of them, or the first of each stage.
    for (sets, counts) in [
        (["memory.recompute=block", "memory.recompute_layers=0"], [4, 4]),
        (["memory.recompute=block", "memory.recompute_layers=1"], [5, 3]),
        (["memory.recompute=2", "memory.recompute_layers=4"], [5, 3]),
    ] {
        let slow = |profile: &mut Profile| profile.layers[0].recomputed = 10;
        assert_eq!(stages(&[&two[..], &sets].concat(), slow), counts, "{sets:?}");
    }
}

#[test]
fn files_are_read_back() {
    let profile = profile(8, 2, &config(&["model.layers=8"]));
    assert_eq!(Profile::parse(&profile.to_toml().unwrap(), "again").unwrap(), profile);
    assert_eq!(profile.costs().len(), 8);
    let model = &profile.device;
    assert!(
        profile.to_string().starts_with(&format!("milliseconds on {model}, of a micro-batch\n")),
        "{profile}"
    );
    let with = Profile { libraries: "driver 1.2".to_owned(), ..profile.clone() }.to_string();
    assert!(with.starts_with(&format!("milliseconds on {model} (driver 1.2), of a micro-batch\n")), "{with}");
}

#[test]
fn invalid_files_are_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("times.toml");
    let here = config(&["model.layers=8"]);
    let good = profile(8, 2, &here).to_toml().unwrap();
    let refusal = |text: &str, config: &RunConfig| {
        std::fs::write(&path, text).unwrap();
        let error = Profile::of_run(&path, config, &Description::host()).unwrap_err();
        let message = error.to_string();
        assert_eq!((error.exit_status(), message.lines().count()), (2, 1), "{message}");
        assert!(
            message.starts_with("test.toml: parallel.profile: ") && message.contains("times.toml"),
            "{message}"
        );
        message
    };
    for (from, to, expected) in [
        ("count = 7", "count = 0", "count must be above 0"),
        ("count = 7", "count = 6", "has 7 layers; the model has 8"),
        ("count = 7", "count = 9223372036854775807", "layers; the model has 8"),
        ("forward = 3\n", "forward = 0\n", "forward must be above 0"),
        ("update = 0", "update = 1000000000000001", "longer than eleven days"),
        ("update = 0", "updates = 0", "unknown field `updates`"),
        ("forward = 3\n", "forward = -3\n", "times.toml:"),
        ("device = ", "device = \"another\" #", "was measured on another; this is for"),
        ("\"model.width\" = \"32\"", "", "model.width is 32 here and absent there"),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        let message = refusal(&text, &here);
        assert!(message.contains(expected), "{message}");
    }
    for (sets, expected) in [
        (
            &["model.layers=8", "model.width=64"][..],
            "is of other layers: model.width is 64 here and 32 there",
        ),
        (&["model.layers=4"], "model.layers is 4 here and 8 there"),
        (&["model.layers=8", "train.micro_batch_size=2"], "train.micro_batch_size is 2 here and 1 there"),
        (&["model.layers=8", "optim.kind=sgd"], "optim.kind is \"sgd\" here and \"adamw\" there"),
        (&["model.kind=mlp"], "model.kind is \"mlp\" here and \"gpt\" there"),
    ] {
        let message = refusal(&good, &config(sets));
        assert!(message.contains(expected), "{message}");
    }
    std::fs::remove_file(&path).unwrap();
    let message = Profile::of_run(&path, &here, &Description::host()).unwrap_err().to_string();
    assert!(message.contains("cannot be read"), "{message}");
}

/// Checks that costs counted on Meta include recomputation.
#[test]
fn counted_costs_include_recomputation() {
    let setup = |sets: &[&str]| prepare(config(sets), Placement::Cpu).unwrap();
    let four = ["model.layers=4", "parallel.pipeline=2", "parallel.partition=[2, 2]"];
    let times = |sets: &[&str], stage: usize| {
        let setup = setup(&[&four[..], sets].concat());
        let costs = Costs::from_config(&setup.config, &setup.dataset, &Description::host()).unwrap();
        costs.of_stage(&setup.blueprint.stages[stage])
    };
    let baseline = times(&[], 0);
    let some = times(&["memory.recompute=block", "memory.recompute_layers=1"], 0);
    let all = times(&["memory.recompute=block"], 0);
    assert_eq!((baseline.forward, baseline.backward_weight), (all.forward, all.backward_weight));
    assert!(baseline.backward_input < some.backward_input && some.backward_input < all.backward_input);
    assert_eq!(all.backward_input - some.backward_input, some.backward_input - baseline.backward_input);
    let none = with_recompute(&setup(&four).config, RecomputePolicy::None);
    assert_eq!(none.memory.recompute, RecomputePolicy::None);
}

/// Checks that the recomputation chosen by `"auto"` is written into the configuration and partitioned as if
/// configured.
#[test]
fn auto_recomputation_partitions_like_a_configured_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("times.toml");
    let sets = ["model.layers=8", "model.context=128", "parallel.pipeline=2", "train.global_batch_size=8"];
    let mut times = profile(8, 2, &config(&sets));
    times.layers[0].recomputed = 10;
    std::fs::write(&path, times.to_toml().unwrap()).unwrap();
    let file = format!("parallel.profile={}", path.display());
    let setup =
        |more: &[&str]| prepare(config(&[&sets[..], &[&file], more].concat()), Placement::Cpu).unwrap();
    let peak = |setup: &Setup| plan_within(setup).unwrap().largest().unwrap().statistics.peak_reserved();
    let none = setup(&["memory.recompute=none"]);
    let block = setup(&["memory.recompute=block"]);
    assert_ne!(none.blueprint.layers_of_stages(), block.blueprint.layers_of_stages());
    assert!(peak(&block) < peak(&none));
    for limit in [peak(&none), peak(&none) - 1, peak(&block)] {
        let limit = format!("memory.limit_bytes={limit}");
        let chosen = recompute::settle(setup(&["memory.recompute=auto", &limit])).unwrap();
        let again = prepare((*chosen.config).clone(), Placement::Cpu).unwrap();
        assert_eq!(chosen.blueprint.layers_of_stages(), again.blueprint.layers_of_stages(), "{limit}");
        assert_eq!(peak(&chosen), peak(&again), "{limit}");
    }
}
