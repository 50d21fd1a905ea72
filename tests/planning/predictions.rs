//! Tests that plans, schedules and proposals predict the same times.

use serde_json::Value;

use super::{json, planned, text, workplace};

const PIPELINE: [&str; 6] = [
    "model.layers=8",
    "train.micro_batch_size=2",
    "train.global_batch_size=16",
    "parallel.pipeline=2",
    "precision.compute=bf16",
    "parallel.lanes=1",
];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn a_plan_prints_parts_rates_and_energy() {
    let directory = workplace();
    let plan = |device: &str, more: &[&str]| {
        planned(directory.path(), &PIPELINE, &[&["--device", device][..], more].concat())
    };
    let object = json(&plan("h200", &["--json"]));
    let predicted = &object["predicted"];
    let seconds = number(&object["predicted_step_seconds"]);
    let parts = ["inputs", "forward", "backward", "pipeline", "layers", "sequences"];
    let parts = parts.into_iter().chain(["reduction", "optimizer", "host"]);
    let sum: f64 = parts.map(|part| number(&predicted[format!("{part}_seconds")])).sum();
    assert!((sum / seconds - 1.0).abs() < 1e-6, "{predicted}");
    let described = plan::PlanDevice::shipped().unwrap().power.unwrap();
    assert_eq!(number(&predicted["energy"]["joules"]), 2.0 * described.step_watts.unwrap() * seconds);
    let of_data_sheet = json(&plan("a100-80gb", &["--json"]));
    let joules = 2.0 * 400.0 * number(&of_data_sheet["predicted_step_seconds"]);
    assert_eq!(number(&of_data_sheet["predicted"]["energy"]["joules"]), joules);
    let speed = number(&predicted["tokens_per_second"]);
    assert!((speed / 2.0 / number(&predicted["tokens_per_second_per_rank"]) - 1.0).abs() < 1e-12);
    assert!((speed * seconds / number(&predicted["tokens"]) - 1.0).abs() < 1e-12);
    assert!(number(&predicted["mfu"]) > 0.0 && predicted["basis"] == "measured_calls", "{predicted}");
    // The pipeline, the axis and the schedule all use the clock's times.
    let along = object["communication"].as_array().unwrap();
    assert_eq!(along[0]["exposed_seconds"], predicted["pipeline_seconds"]);
    assert_eq!(object["pipeline"]["times"], "timed by the calls of a step");
    let printed = text(&plan("h200", &[]).stdout);
    for part in [" for each GPU, MFU ", "at the measured power of 68", "; assumed, not measured: "] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(
        printed.contains("8 GPUs of a host (gpus_per_host)") && !printed.contains("estimate"),
        "{printed}"
    );
    let drawn = text(&plan("h200", &["--schedule"]).stdout);
    assert!(drawn.contains("timed by the calls of a step\n"), "{drawn}");
    assert_eq!(plan("h200", &["--html", "plan.html"]).status.code(), Some(0));
    let page = std::fs::read_to_string(directory.path().join("plan.html")).unwrap();
    assert!(page.contains("Step, predicted") && page.contains("timed by the calls of a step"));
    // Data sheets give estimates; a CPU has no predicted time.
    let estimate = text(&plan("b200", &[]).stdout);
    assert!(estimate.contains(", an estimate from the data sheet"), "{estimate}");
    let host = json(&plan("cpu", &["--json"]));
    assert!(host.get("predicted").is_none() && host["communication"][0].get("exposed_seconds").is_none());
    assert!(host["pipeline"]["times"].as_str().unwrap().starts_with("timed by counted FLOPs"));
}

#[test]
fn descriptions_say_how_hosts_are_connected() {
    let directory = workplace();
    let shipped = include_str!("../../launch/devices/h200.toml");
    let network = shipped.find("# The network").unwrap();
    let without = &shipped[..network];
    let times = [
        ("near", shipped.replace("\nmultiprocessors", "\ngpus_per_host = 4\nmultiprocessors")),
        ("far", shipped.replace("\nmultiprocessors", "\ngpus_per_host = 2\nmultiprocessors")),
        ("slow", format!("gpus_per_host = 2\n{without}[network]\nbytes = 1e9\nseconds = 1e-3\n")),
        ("none", format!("gpus_per_host = 2\n{without}")),
    ];
    let sets = ["parallel.data=4", "parallel.lanes=4", "precision.compute=bf16", "model.width=256"];
    let [near, far, slow, none] = times.map(|(name, description)| {
        let name = format!("{name}.toml");
        std::fs::write(directory.path().join(&name), description).unwrap();
        let plan = planned(directory.path(), &sets, &["--device", &name, "--json"]);
        json(&plan)["predicted"].clone()
    });
    let waits = |predicted: &Value| number(&predicted["reduction_seconds"]);
    assert!(waits(&near) < waits(&far) && waits(&far) < waits(&slow), "{near} {far} {slow}");
    let assumed = |predicted: &Value| predicted["assumed"].to_string();
    assert!(!assumed(&near).contains("[network]") && !assumed(&near).contains("of a host"));
    assert!(assumed(&far).contains("bytes of [network]") && !assumed(&slow).contains("[network]"));
    assert!(assumed(&none).contains("50 GB/s for each GPU between hosts"), "{none}");
}

/// Checks that proposals are sorted by the times of their plans, have different times where they should, and
/// all fit.
#[test]
fn proposals_have_the_times_of_their_plans() {
    let directory = workplace();
    let sets = ["precision.compute=bf16", "train.global_batch_size=16", "parallel.lanes=1"];
    let search = ["--fit", "--ranks", "2", "--device", "h200", "--json"];
    let result = json(&planned(directory.path(), &sets, &search));
    let proposals = result["proposals"].as_array().unwrap();
    let mut last = 0.0;
    for proposal in proposals.iter().chain([&result["larger_batch"]]).filter(|proposal| !proposal.is_null()) {
        let keys: Vec<_> =
            proposal["set"].as_array().unwrap().iter().map(|set| set.as_str().unwrap()).collect();
        let output = planned(directory.path(), &[&sets[..], &keys].concat(), &["--json", "--device", "h200"]);
        assert_eq!(output.status.code(), Some(0), "{keys:?}: {}", text(&output.stderr));
        let plan = json(&output);
        assert_eq!(plan["predicted_step_seconds"], proposal["step_seconds"], "{keys:?}");
        assert_eq!(plan["fit"]["needs_bytes"], proposal["peak_reserved_bytes"], "{keys:?}");
        if proposal != &result["larger_batch"] {
            assert!(number(&proposal["step_seconds"]) >= last, "{proposals:?}");
            last = number(&proposal["step_seconds"]);
        }
    }
    let mut times: Vec<_> = proposals.iter().map(|proposal| proposal["step_seconds"].to_string()).collect();
    times.sort();
    times.dedup();
    assert!(times.len() > proposals.len() / 2, "{times:?}");
}

#[test]
fn an_idle_pipeline_gets_a_larger_global_batch() {
    let directory = workplace();
    // One rank cannot hold the model, and a step has two micro-batches for two stages.
    let sets = ["model.layers=8", "model.width=256", "train.micro_batch_size=2", "train.global_batch_size=4"];
    let sets = [&sets[..], &["parallel.lanes=1", "precision.compute=bf16", "model.context=64"]].concat();
    // Rates of a device alone, whose host is not slower than a small model's calls.
    let shipped = include_str!("../../launch/devices/h200.toml");
    let rates = &shipped[..shipped.find("# Measured calls").unwrap()];
    let is_rate = |line: &&str| !line.starts_with("launch_seconds") && !line.starts_with("kernel_seconds");
    let rates: Vec<&str> = rates.lines().filter(is_rate).collect();
    std::fs::write(directory.path().join("rates.toml"), rates.join("\n")).unwrap();
    let search = ["--ranks", "2", "--device", "rates.toml"];
    let all = json(&planned(directory.path(), &sets, &[&["--fit", "--json"][..], &search].concat()));
    let larger = &all["larger_batch"];
    let samples = number(&larger["samples_per_step"]);
    assert!(
        samples > 4.0 && number(&larger["tokens_per_second"]) > number(&larger["tokens_per_second_before"])
    );
    let pipelines =
        all["proposals"].as_array().unwrap().iter().filter(|proposal| number(&proposal["bubble"]) > 0.05);
    let before = pipelines.map(|proposal| number(&proposal["bubble"])).next().unwrap();
    assert!(number(&larger["bubble"]) < before, "{larger}");
    let printed = text(&planned(directory.path(), &sets, &[&["--fit"][..], &search].concat()).stdout);
    let sentence =
        format!("a larger global batch, which changes the run: with {samples} samples a step instead of 4");
    assert!(printed.contains(&sentence), "{printed}");
}
