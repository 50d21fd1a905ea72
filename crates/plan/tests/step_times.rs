//! Tests of predicted steps against measured ones.

use std::path::Path;

use config::RunConfig;
use plan::{DeviceRanks, MeasuredCalls, PlanDevice, PlannedSchedule, StepTime, prepare_shapes};
use worker::{Placement, Setup};

/// Predicts a step of a shipped configuration with keys changed, on the default H200.
fn predict(file: &str, sets: &[&str]) -> StepTime {
    predict_on(&PlanDevice::shipped().unwrap(), file, sets)
}

fn predict_on(device: &PlanDevice, file: &str, sets: &[&str]) -> StepTime {
    StepTime::predict(&setup_on(device, file, sets), device).unwrap().unwrap()
}

fn setup_on(device: &PlanDevice, file: &str, sets: &[&str]) -> Setup {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../launch/configs").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = RunConfig::parse(&text, file, path.parent().unwrap(), &sets).unwrap();
    let description = device.description(DeviceRanks::from_config(&config));
    prepare_shapes(config, Placement::Meta(description)).unwrap()
}

/// Returns the keys of a step of one micro-batch with `sequences` sequences.
fn batch(sequences: usize) -> Vec<String> {
    let size = |key| format!("train.{key}={sequences}");
    vec![size("micro_batch_size"), size("global_batch_size"), "parallel.lanes=1".to_owned()]
}

const BF16: [&str; 2] = ["precision.compute=bf16", "data.kind=synthetic"];

/// Compares predictions with times from `benches/notes` for one H200, by another H200's measured calls and by
/// rates alone.
#[test]
fn measured_steps_are_predicted() {
    let described = PlanDevice::shipped().unwrap();
    let mut rates = described.clone();
    rates.times.clear();
    let of_rates = rates.rates.as_mut().unwrap();
    (of_rates.launch_seconds, of_rates.kernel_seconds) = (None, None);
    for (file, sequences, set, measured) in [
        ("gpt2-124m.toml", 64, "memory.recompute=none", 107.4),
        ("gpt2-124m.toml", 64, "memory.recompute=block", 127.5),
        ("gpt2-124m.toml", 64, "precision.matmul=fp8", 93.3),
        ("gpt2-1558m.toml", 16, "memory.recompute=none", 318.0),
        ("gpt2-1558m.toml", 16, "precision.matmul=fp8", 230.3),
        ("llama3-1b.toml", 4, "memory.recompute=none", 250.0),
        ("llama3-1b.toml", 4, "lora.rank=16", 198.0),
        ("llama3-1b.toml", 4, "precision.matmul=fp8", 198.8),
    ] {
        let sizes = batch(sequences);
        let sets: Vec<&str> = sizes.iter().map(String::as_str).chain(BF16).chain([set]).collect();
        for (device, least_measured, most_error) in [(&described, 0.95, 0.06), (&rates, 0.0, 0.1)] {
            let time = predict_on(device, file, &sets);
            let error = 1e3 * time.step_seconds / measured - 1.0;
            assert!(error.abs() < most_error, "{file}, {set}: {:+.1} %\n{time}", 100.0 * error);
            let parts: f64 = time.parts.named().iter().map(|(_, seconds)| seconds).sum();
            assert!((parts / time.step_seconds - 1.0).abs() < 1e-6, "{time:?}");
            assert!(time.measured_share >= least_measured, "{file}, {set}\n{time}");
            let is_assumed = time.assumed.iter().any(|key| key == "kernel_seconds");
            assert_eq!(is_assumed, device.times.is_empty(), "{time:?}");
        }
    }
}

#[test]
fn grids_differ_where_their_work_does() {
    let gpt = |sets: &[&str]| predict("gpt2-355m.toml", &[&BF16[..], sets].concat());
    let step = ["train.micro_batch_size=4", "train.global_batch_size=64", "parallel.lanes=8"];
    let predict_grid = |sets: &[&str]| gpt(&[&step[..], sets].concat());
    let alone = predict_grid(&[]);
    assert!(alone.parts.reduction_seconds < 1e-3 && alone.parts.pipeline_seconds == 0.0, "{alone}");
    // Ranks divide the work and wait for gradients.
    let host = predict_grid(&["parallel.data=8", "parallel.zero_stage=1"]);
    assert!(host.step_seconds < alone.step_seconds / 5.0 && host.parts.reduction_seconds > 0.0, "{host}");
    // Stages wait for each other, in some schedules less than in others, and less with more micro-batches.
    let idle = |time: &StepTime| time.parts.pipeline_seconds + time.parts.reduction_seconds;
    let schedule = |name: &str| predict_grid(&["parallel.pipeline=4", &format!("parallel.schedule={name}")]);
    let gpipe = schedule("gpipe");
    let zero_bubble = schedule("zero-bubble");
    assert!(idle(&zero_bubble) < idle(&gpipe), "{zero_bubble}\n{gpipe}");
    let few = predict_grid(&["parallel.pipeline=4", "train.micro_batch_size=8"]);
    assert!(idle(&few) / few.step_seconds > idle(&schedule("1f1b")) / schedule("1f1b").step_seconds);
    let end = gpipe.parts.reduction_seconds;
    assert!(end < 0.01 * gpipe.step_seconds, "stages wait for stages, not for gradients: {gpipe}");
    // Tensor- and context-parallel ranks wait for each other.
    for axis in ["parallel.tensor=2", "parallel.context=2"] {
        let lanes = axis.replace('=', "_lanes=").replace("context_lanes=2", "context_lanes=4");
        let shared = predict_grid(&[axis, &lanes]);
        assert!(shared.parts.exchange_seconds() > 0.0, "{shared}");
    }
    // Recomputation adds to backward only.
    let again = predict_grid(&["memory.recompute=block"]);
    assert!(
        (again.parts.forward_seconds / alone.parts.forward_seconds - 1.0).abs() < 0.05,
        "{again}\n{alone}"
    );
    assert!(again.parts.backward_seconds > 1.1 * alone.parts.backward_seconds, "{again}\n{alone}");
}

/// Checks that calls of ranks on one GPU overlap where they leave multiprocessors idle.
#[test]
fn ranks_that_share_a_gpu_take_less_than_twice_as_long() {
    let step = |ranks: &'static str| {
        let sets = ["parallel.data=2", "parallel.lanes=2", "train.micro_batch_size=16", ranks];
        let time = predict(
            "gpt2-124m.toml",
            &[&BF16[..], &["train.global_batch_size=32", "train.graphs=off"], &sets].concat(),
        );
        time.step_seconds
    };
    let ratio = step("parallel.ranks_per_device=2") / step("parallel.ranks_per_device=1");
    assert!((1.6..1.95).contains(&ratio), "{ratio}");
}

/// Checks that stages wait as long as the schedule's bubble, including at the end of a step, where the
/// gradient norm joins them.
#[test]
fn the_idle_time_of_a_pipeline_is_its_bubble() {
    let device = PlanDevice::shipped().unwrap();
    let step = ["train.micro_batch_size=8", "model.context=1024", "parallel.lanes=2", "parallel.pipeline=4"];
    let grids: [&[&str]; 4] = [
        &["train.global_batch_size=64"],
        &["train.global_batch_size=128", "parallel.data=2"],
        &["train.global_batch_size=128", "parallel.data=2", "parallel.zero_stage=2"],
        &["train.global_batch_size=64", "parallel.tensor=2", "parallel.tensor_lanes=2"],
    ];
    for schedule in ["gpipe", "1f1b", "interleaved", "zero-bubble"] {
        for grid in grids {
            let schedule = format!("parallel.schedule={schedule}");
            let sets = [&BF16[..], &step, grid, &[&schedule]].concat();
            let setup = setup_on(&device, "gpt2-355m.toml", &sets);
            let time = StepTime::predict(&setup, &device).unwrap().unwrap();
            let bubble = PlannedSchedule::from_setup(&setup, &device).unwrap().bubble();
            // The update and waits for gradients are parts of a step beside its passes.
            let idle = time.pipeline_idle;
            assert!(idle <= bubble + 0.02 && idle > 0.85 * bubble, "{idle} of {bubble}: {sets:?}\n{time}");
            if schedule.ends_with("gpipe") {
                // (p - 1) / (m + p - 1) for equal stages; the last stage also has the head.
                assert!(idle > 0.95 * 3.0 / 11.0, "{idle}: {sets:?}\n{time}");
            }
        }
    }
}

#[test]
fn ranks_on_other_hosts_wait_longer() {
    let sets =
        ["parallel.data=8", "parallel.lanes=8", "train.micro_batch_size=1", "train.global_batch_size=8"];
    let predict_hosts = |gpus_per_host| {
        let mut device = PlanDevice::shipped().unwrap();
        device.gpus_per_host = Some(gpus_per_host);
        predict_on(&device, "gpt2-355m.toml", &[&BF16[..], &sets].concat()).parts.reduction_seconds
    };
    let [one, two, eight] = [8, 4, 1].map(predict_hosts);
    assert!(one < two && two < eight, "{one} {two} {eight}");
}

/// Checks that a rank adds all received parts of its shard in one call, whatever the number of ranks.
#[test]
fn a_step_on_many_hosts_is_about_as_long_as_on_few() {
    for stage in ["parallel.zero_stage=0", "parallel.zero_stage=1", "parallel.zero_stage=2"] {
        let [few, many] = [64, 1024].map(|ranks: usize| {
            let sets = [
                format!("parallel.data={ranks}"),
                format!("parallel.lanes={ranks}"),
                format!("train.global_batch_size={}", 8 * ranks),
            ];
            let sets = sets.each_ref().map(String::as_str);
            predict("gpt2-124m.toml", &[&sets[..], &BF16, &[stage, "train.micro_batch_size=8"]].concat())
        });
        let calls = |time: &StepTime| {
            let adds =
                |family: &&plan::FamilySeconds| ["add", "tree", "spaced_tree"].contains(&family.family);
            time.families.iter().filter(adds).map(|family| family.calls).sum::<u64>()
        };
        // ZeRO-2 adds the losses of lanes 64 at a time.
        let losses = if stage.ends_with('2') { 16 } else { 0 };
        assert_eq!(calls(&few) + losses, calls(&many), "{stage}: {:?}", many.families);
        assert!(many.step_seconds < 1.15 * few.step_seconds, "{stage}: {few}\n{many}");
    }
}

#[test]
fn messages_within_a_host_take_its_links() {
    // Each pipeline is on one host, and gradients are summed between the hosts.
    let sets = ["parallel.data=2", "parallel.pipeline=2", "parallel.lanes=2", "train.micro_batch_size=1"];
    let predict_network = |network_bytes, gpus_per_host| {
        let mut device = PlanDevice::shipped().unwrap();
        device.gpus_per_host = Some(gpus_per_host);
        device.network.as_mut().unwrap().bytes = network_bytes;
        predict_on(&device, "gpt2-355m.toml", &[&BF16[..], &sets, &["train.global_batch_size=16"]].concat())
    };
    let [fast, slow] = [50e9, 1e9].map(|bytes| predict_network(bytes, 2).parts);
    assert!(slow.reduction_seconds > 2.0 * fast.reduction_seconds, "{slow:?} {fast:?}");
    let [fast, slow] = [fast, slow].map(|parts| parts.pipeline_seconds);
    // Except for the gradient norm, at which a stage waits for the other's sums.
    assert!((slow / fast - 1.0).abs() < 0.1, "{slow} {fast}");
    // A pipeline across hosts waits for the network.
    assert!(predict_network(1e9, 1).parts.pipeline_seconds > 1.5 * fast);
}

#[test]
fn a_small_step_waits_for_a_slow_host_unless_it_is_replayed() {
    let mut device = PlanDevice::shipped().unwrap();
    let sets =
        ["train.micro_batch_size=1", "train.global_batch_size=1", "parallel.lanes=1", "model.context=64"];
    let predict_graphs = |device: &PlanDevice, graphs| {
        predict_on(device, "gpt2-124m.toml", &[&BF16[..], &sets, &[graphs]].concat())
    };
    let [quick, replayed] =
        ["train.graphs=off", "train.graphs=auto"].map(|graphs| predict_graphs(&device, graphs));
    assert!(replayed.step_seconds < 1.01 * quick.step_seconds && replayed.is_replayed, "{replayed}\n{quick}");
    device.rates.as_mut().unwrap().launch_seconds = Some(100e-6);
    let [slow, replayed] =
        ["train.graphs=off", "train.graphs=auto"].map(|graphs| predict_graphs(&device, graphs));
    assert!(
        slow.parts.host_seconds > 0.5 * slow.step_seconds && slow.step_seconds > 5.0 * quick.step_seconds,
        "{slow}"
    );
    assert!(replayed.step_seconds < 2.0 * quick.step_seconds, "{replayed}");
}

#[test]
fn measured_calls_take_their_measured_time() {
    let mut device = PlanDevice::shipped().unwrap();
    device.times.clear();
    let sets = batch(8);
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(BF16).collect();
    let before = predict_on(&device, "gpt2-124m.toml", &sets);
    // The update of all parameters, measured at half the memory rate.
    let call = "optimizer.adamw_f32 0".to_owned();
    device.times.push(MeasuredCalls { call, samples: vec![[1000.0, 1e9, 1.0, 1e-3]] });
    let after = predict_on(&device, "gpt2-124m.toml", &sets);
    assert!(after.parts.optimizer_seconds > 2.0 * before.parts.optimizer_seconds, "{after}\n{before}");
    assert!(
        after.measured_share > 0.0 && after.parts.forward_seconds == before.parts.forward_seconds,
        "{after}"
    );
    let text = device.to_toml().unwrap();
    assert_eq!(PlanDevice::parse(&text, "written").unwrap(), device);
    for (wrong, why) in [("1e-3", "above 0"), ("1000.0", "at least 0")] {
        let text = text.replace(&format!("{:?}", wrong.parse::<f64>().unwrap()), "-1.0");
        let error = PlanDevice::parse(&text, "written").unwrap_err().to_string();
        assert!(error.contains("[[times]]") && error.contains(why), "{error}");
    }
}

/// Checks that copies of offloaded tensors take their bytes at the host link's rate, overlapping each other
/// and compute.
#[test]
fn offloaded_bytes_take_their_time() {
    let mut device = PlanDevice::shipped().unwrap();
    device.rates.as_mut().unwrap().host_copy_bytes = Some(10e9);
    // Measured copies would take their measured time.
    device.times.retain(|calls| !calls.call.ends_with(" pool"));
    let sets = batch(4);
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(BF16).collect();
    let predict_offload = |more: &[&str]| predict_on(&device, "llama3-1b.toml", &[&sets[..], more].concat());
    let here = predict_offload(&[]);
    assert_eq!(here.parts.offload_seconds, 0.0);
    // Master weights and two moments of 1.5 billion parameters.
    let parameters = 1_498_482_688.0;
    let state = predict_offload(&["optim.offload=true"]);
    let more = state.step_seconds - here.step_seconds;
    assert!((more / (12.0 * parameters / 10e9) - 1.0).abs() < 0.05, "{more}\n{state}");
    assert!(state.parts.offload_seconds > 0.9 * more, "{state}");
    // Two bytes per weight, for forward and for backward, partly hidden by compute.
    let weights = predict_offload(&["memory.offload_weights=true"]);
    let more = weights.step_seconds - state.step_seconds;
    let copies = 2.0 * 2.0 * parameters / 10e9;
    assert!(more < copies && more > copies - here.step_seconds, "{more} {copies}\n{weights}");
    // Inputs of 16 blocks take 6.7 ms each, in which a block almost computes forward.
    let again = predict_offload(&["memory.recompute=block"]);
    let inputs = predict_offload(&["memory.recompute=block", "memory.offload=activations"]);
    assert!(inputs.step_seconds < 1.2 * again.step_seconds, "{inputs}\n{again}");
    assert!(inputs.parts.offload_seconds < 16.0 * 6.7e-3, "{inputs}");
}
