//! Tests of a plan's sentences about settings: preallocation, the cost of lanes, keys without effect.

use crate::common;
use crate::common::setup;
use plan::{Plan, plan, plan_run, without_effect};
use plan::{PlanOptions, PlanTarget};
use telemetry::step_trace::TraceEvent;

/// Returns the bytes that a rank requests from its driver after the start.
fn taken_later(plan: &Plan) -> u64 {
    let events = plan.parts.list().iter().skip(1).flat_map(|part| &part.trace.events);
    let taken = |event: &TraceEvent| match event {
        TraceEvent::Driver { taken, .. } => *taken,
        _ => 0,
    };
    events.map(taken).sum()
}

#[test]
fn preallocated_runs_request_no_driver_memory_after_the_start() {
    let table: &[&[&str]] = &[
        &[],
        &["parallel.data=2", "parallel.zero_stage=1"],
        &["parallel.pipeline=2", "train.validate_every=2"],
        &["memory.allocator=backend:native", "model.width=256", "model.context=64"],
        &["memory.allocator=large_segment_size_mb:32", "model.width=256", "model.context=64"],
        &["memory.recompute=block", "model.width=256", "model.context=64"],
    ];
    for gpu in [false, true] {
        for sets in table {
            let without = setup(gpu, sets);
            let with = setup(gpu, &[sets, &["memory.preallocate=true"][..]].concat());
            for rank in 0..without.config.world_size() {
                let [without, with] = [&without, &with].map(|setup| plan(setup, rank).unwrap());
                assert_eq!(taken_later(&with), 0, "rank {rank} of {sets:?}");
                let start = with.parts.list().first().unwrap().figures;
                assert_eq!(start.reserved_bytes, with.statistics.peak_reserved(), "{sets:?}");
                assert_eq!(with.statistics.peak_reserved(), without.statistics.peak_reserved(), "{sets:?}");
                assert_eq!(with.statistics.peak_allocated(), without.statistics.peak_allocated(), "{sets:?}");
            }
        }
    }
}

/// Settings of all rows that have an effect with a model of three steps.
const USUAL: [&str; 2] = ["optim.warmup_steps=1", "parallel.bucket_bytes=67108864"];

#[test]
fn settings_without_effect_are_named() {
    let table: &[(&[&str], &[&str])] = &[
        (&[], &[]),
        (&["optim.warmup_steps=20"], &["optim.warmup_steps = 20 is not below train.steps = 3"]),
        (&["parallel.zero_stage=1"], &["parallel.zero_stage has no effect"]),
        (&["parallel.data=2", "parallel.zero_stage=1"], &[]),
        (&["parallel.shard=1"], &["parallel.shard has no effect with parallel.data = 1"]),
        (
            &["parallel.data=4", "parallel.shard=2"],
            &["parallel.shard has no effect below parallel.zero_stage = 2"],
        ),
        (&["parallel.data=4", "parallel.shard=2", "parallel.zero_stage=2"], &[]),
        (&["parallel.data=4", "parallel.shard=2", "parallel.zero_stage=3", "parallel.prefetch=2"], &[]),
        (&["parallel.data=2", "parallel.zero_stage=2", "parallel.bucket_bytes=16384"], &[]),
        (
            &["parallel.data=2", "parallel.zero_stage=2", "parallel.prefetch=2", "parallel.overlap=off"],
            &[
                "parallel.prefetch has no effect without sharded or offloaded weights",
                "parallel.overlap has no effect from parallel.zero_stage = 2 on",
            ],
        ),
        (
            &[
                "parallel.data=2",
                "parallel.zero_stage=3",
                "parallel.bucket_bytes=16384",
                "parallel.peer_access=off",
            ],
            &[
                "parallel.bucket_bytes has no effect with parallel.zero_stage = 3",
                "parallel.peer_access has no effect from parallel.zero_stage = 2 on",
            ],
        ),
        (
            &["parallel.partition=smallest", "parallel.schedule=interleaved", "parallel.chunks=3"],
            &[
                "parallel.partition has no effect with parallel.pipeline = 1",
                "parallel.schedule has no effect",
                "parallel.chunks has no effect",
            ],
        ),
        (&["parallel.pipeline=2", "parallel.partition=smallest"], &[]),
        (&["memory.recompute=block", "model.context=64"], &[]),
        (
            &["parallel.reduction=nccl", "parallel.overlap=off", "parallel.peer_access=off"],
            &[
                "parallel.reduction has no effect with parallel.data = 1",
                "parallel.overlap has no effect",
                "parallel.peer_access has no effect with parallel.data = 1",
            ],
        ),
        (&["parallel.bucket_bytes=16384"], &["parallel.bucket_bytes has no effect with parallel.data = 1"]),
        (
            &["parallel.data=2", "parallel.reduction=nccl", "parallel.peer_blocks=8", "parallel.overlap=off"],
            &["parallel.peer_blocks has no effect on CPU ranks", "parallel.reduction = \"nccl\" names a lib"],
        ),
        (&["precision.tf32=true"], &["precision.tf32 has no effect on a CPU"]),
        (&["precision.fp8_recipe=rowwise"], &["precision.fp8_recipe has no effect with precision.matmul"]),
        (
            &["lora.rank=0", "lora.alpha=32", "lora.targets=['c_attn']"],
            &["lora.targets has no effect with lora.rank = 0", "lora.alpha has no effect with lora.rank = 0"],
        ),
        (
            &["lora.rank=0", "lora.scaling=rslora", "lora.b_learning_rate=16"],
            &["lora.scaling has no effect with lora.rank = 0", "lora.b_learning_rate has no effect"],
        ),
        (&["lora.rank=8", "lora.alpha=32"], &[]),
        (&["checkpoint.minutes=0", "checkpoint.keep=5"], &["checkpoint.keep has no effect"]),
        (&["telemetry.listen_publicly=true"], &["telemetry.listen_publicly has no effect without"]),
    ];
    for (sets, expected) in table {
        let sets = [&USUAL, *sets].concat();
        let sentences = without_effect(&setup(false, &sets));
        assert_eq!(sentences.len(), expected.len(), "{sets:?}: {sentences:?}");
        let all_begin = sentences.iter().zip(*expected).all(|(sentence, start)| sentence.starts_with(start));
        assert!(all_begin, "{sentences:?}");
    }
}

#[test]
fn some_settings_have_an_effect_on_gpus_alone() {
    for set in ["parallel.peer_access=off", "parallel.reduction=nccl", "precision.tf32=true"] {
        let sets = [&USUAL[..], &["parallel.data=2", set]].concat();
        assert_eq!(without_effect(&setup(true, &sets)), [""; 0], "{set}");
    }
    let sharded = ["parallel.data=2", "parallel.zero_stage=2", "parallel.peer_access=off"];
    let sentences = without_effect(&setup(true, &[&USUAL[..], &sharded].concat()));
    assert!(matches!(&sentences[..], [only] if only.starts_with("parallel.peer_access")), "{sentences:?}");
}

#[test]
fn recomputation_without_effect_names_the_kind_of_model() {
    let mlp = common::setup_from(common::MLP, false, &["memory.recompute=block"]);
    let sentences = without_effect(&mlp);
    let [sentence] = &sentences[..] else { panic!("{sentences:?}") };
    assert!(sentence.contains("saves no memory with model.kind = \"mlp\""), "{sentence}");
}

#[test]
fn the_cost_of_lanes_is_the_difference_to_one_lane() {
    let report = |lanes: &str| {
        let config = (*setup(true, &[lanes]).config).clone();
        let target = PlanTarget::from_argument("cuda").unwrap();
        plan_run(config, &PlanOptions { target, capacity: None }).unwrap()
    };
    let one = report("parallel.lanes=1");
    let many = report("parallel.lanes=8");
    assert!(one.lanes.is_none() && !one.to_string().contains("gradient sets"));
    let cost = many.lanes.unwrap();
    assert_eq!((cost.sets, cost.local), (4, 8));
    let live = |report: &plan::PlanReport| report.plans.roles()[0].statistics.allocated();
    assert_eq!(cost.extra_bytes(), live(&many) - live(&one));
    assert!(many.to_string().contains("parallel.lanes = 8: 4 gradient sets on a rank for its 8 lanes"));
    // With lanes of one micro-batch, the last gradients need no set of their own.
    let report = report("parallel.lanes=32");
    assert_eq!(report.lanes.unwrap().sets, 5);
}

#[test]
fn uneven_runs_and_several_subtrees_are_reported() {
    let report = |sets: &[&str]| {
        let config = (*setup(false, &[sets, &["parallel.lanes=8"]].concat()).config).clone();
        let target = PlanTarget::from_argument("cpu").unwrap();
        plan_run(config, &PlanOptions { target, capacity: None }).unwrap()
    };
    for even in ["parallel.data=1", "parallel.data=2", "parallel.data=8"] {
        let report = report(&[even]);
        assert!(report.balance.is_none() && !report.to_json().unwrap().contains("\"balance\""), "{even}");
    }
    let seven = report(&["parallel.data=7"]);
    let balance = seven.balance.unwrap();
    assert_eq!((balance.most_lanes, balance.fewest_lanes, balance.parts), (2, 1, 7));
    let text = seven.to_string();
    assert!(text.contains(
        "parallel.data = 7: ranks run 1 or 2 of 8 lanes and wait 42.9 % of the passes' time, so that 4 ranks \
         would be as fast"
    ));
    assert!(!text.contains("subtrees"));
    let three = report(&["parallel.data=3"]);
    assert!(
        three.to_string().contains("wait 11.1 % of the passes' time; their lanes are 5 subtrees, so that")
    );
    assert!(three.to_string().contains("gradient sets on a rank for its 3 lanes"));
    assert!(!three.to_string().contains("parallel.lanes = 3"), "3 do not divide the micro-batches");
    // A rank with two subtrees sends each, and ranks that run as many lanes may have different bytes.
    let sent: Vec<u64> =
        three.plans.by_rank().map(|(_, plan)| plan.step_traffic.total().bytes_sent).collect();
    assert!(sent[0] == sent[1] && sent[1] > sent[2], "{sent:?}");
    let sums = report(&["parallel.data=3", "parallel.reduction=nccl"]);
    assert_eq!(sums.balance.unwrap().parts, 3);
}
