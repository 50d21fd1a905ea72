//! Tests of memory limits that refuse a run or determine what is recomputed.

use plan::{plan, prepare};
use telemetry::Statistic;
use worker::{DeviceChoice, Placement};

use crate::common::runs::{GPT, config, train_in};

#[test]
fn a_limit_too_small_is_refused_with_one_that_suffices() {
    let needs = {
        let setup = prepare(config(GPT, &[]), Placement::Cpu).unwrap();
        plan(&setup, 0).unwrap().statistics.peak_reserved()
    };
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let limited = |bytes: u64| config(GPT, &[&format!("memory.limit_bytes={bytes}")]);
    let refused = train_in(&run_dir, limited(needs / 2), DeviceChoice::Cpu).unwrap_err();
    assert_eq!(refused.exit_status(), 2);
    let text = refused.to_string();
    assert!(
        text.contains("memory.limit_bytes") && text.contains(&telemetry::units::grouped(needs)),
        "{text}"
    );
    assert!(!run_dir.exists());
    train_in(&run_dir, limited(needs), DeviceChoice::Cpu).unwrap();
}

/// Settings with activations far larger than the parameters.
const DEEP: [&str; 8] = [
    "model.layers=6",
    "model.width=64",
    "model.context=128",
    "train.micro_batch_size=16",
    "train.global_batch_size=16",
    "parallel.lanes=1",
    "train.steps=1",
    "train.validation_micro_batches=1",
];

/// Returns the peak of a configuration's reserved bytes; `None` if it does not fit.
fn reserved(overrides: &[&str]) -> Option<u64> {
    let setup = prepare(config(GPT, &[&DEEP, overrides].concat()), Placement::Cpu).unwrap();
    plan(&setup, 0).ok().map(|plan| plan.statistics.peak_reserved())
}

#[test]
fn auto_recomputation_is_the_least_that_fits() {
    let all = |segments: usize| reserved(&[&format!("memory.recompute={segments}")]).unwrap();
    let none = reserved(&[]).unwrap();
    let least = (1..=6).map(all).min().unwrap();
    assert!(3 * least < 2 * none, "{least} of {none}");
    let choose = |limit: u64| {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let limit = format!("memory.limit_bytes={limit}");
        let overrides = [&DEEP[..], &["memory.recompute=auto", &limit]].concat();
        let report = train_in(&run_dir, config(GPT, &overrides), DeviceChoice::Cpu)?;
        let chosen = std::fs::read_to_string(run_dir.join("config.toml")).unwrap();
        let chosen: toml::Table = chosen.parse().unwrap();
        let memory = chosen["memory"].clone();
        let layers = memory["recompute_layers"].as_integer().unwrap();
        Ok::<_, run::RunError>((report, memory["recompute"].to_string(), layers))
    };
    let (plain, chosen, _) = choose(none).unwrap();
    assert_eq!(chosen, "\"none\"");
    for limit in [none - 1, (none + least) / 2, least] {
        let (report, chosen, layers) = choose(limit).unwrap();
        let layers = if layers == 0 { 6 } else { layers };
        assert_ne!(chosen, "\"none\"");
        assert!(report.ranks[0].get(Statistic::PeakReservedBytes) <= limit);
        assert_eq!(report.summary.weights_sha256, plain.summary.weights_sha256);
        // With fewer bytes nothing fits, with any segments.
        let limit = format!("memory.limit_bytes={limit}");
        for fewer in 1..layers {
            for segments in 1..=fewer {
                let (recompute, layers) =
                    (format!("memory.recompute={segments}"), format!("memory.recompute_layers={fewer}"));
                assert_eq!(reserved(&[&recompute, &layers, &limit]), None, "{chosen} of {layers} at {limit}");
            }
        }
    }
    let refused = choose(least / 2).unwrap_err();
    assert_eq!(refused.exit_status(), 2);
    let text = refused.to_string().replace(',', "");
    assert!(text.contains(&format!("memory.limit_bytes = {} is too small", least / 2)), "{text}");
    assert!(
        text.contains("memory.recompute = ") && text.ends_with(&format!("needs {least} bytes")),
        "{text}"
    );
}
