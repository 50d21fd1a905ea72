//! Tests of runs on a GPU.

use collective::Communicator;
use device::{CopyKind, LoggedCall};
use memory::Category;
use plan::{CallSize, DeviceRanks, PlanDevice, plan, prepare, step_calls};
use telemetry::Statistic;
use worker::{DeviceChoice, Gpus, Placement, Worker};

use super::allocator::SETTINGS;
use super::{figures, planned, run, run_on};
use crate::common::devices::{alone, gpu};
use crate::common::runs::{BOTTLENECKS, GPT, LLAMA, MLP, RESNET, config};

/// Models and overrides. Steps are captured as CUDA graphs where possible.
const CASES: &[(&str, &[&str])] = &[
    (MLP, &[]),
    (MLP, &["train.graphs=off"]),
    (GPT, &["model.width=128", "precision.compute=bf16", "train.graphs=off"]),
    (MLP, &["model.activation=gelu", "train.global_batch_size=40"]),
    (MLP, &["precision.compute=bf16", "optim.kind=adamw"]),
    (GPT, &[]),
    (
        GPT,
        &[
            "model.width=256",
            "model.context=128",
            "train.micro_batch_size=4",
            "train.global_batch_size=16",
            "train.steps=3",
        ],
    ),
    (GPT, &["model.width=256", "model.heads=4", "precision.compute=bf16", "train.steps=3"]),
    (GPT, &["model.width=256", "model.heads=4", "precision.compute=bf16", "precision.gradients=bf16"]),
    (MLP, &["precision.compute=bf16", "precision.gradients=bf16", "train.global_batch_size=40"]),
    (GPT, &["model.width=256", "model.heads=4", "precision.compute=bf16", "memory.allocator=backend:native"]),
    (GPT, &["model.width=256", "memory.allocator=roundup_power2_divisions:4", "checkpoint.every=2"]),
    (GPT, &["optim.kind=sgd", "train.steps=1", "memory.allocator=max_split_size_mb:20"]),
    (GPT, &["model.width=256", "memory.recompute=block"]),
    (
        GPT,
        &[
            "model.width=256",
            "model.heads=4",
            "model.layers=5",
            "precision.compute=bf16",
            "memory.recompute=2",
        ],
    ),
    (GPT, &["model.width=128", "precision.compute=bf16", "precision.matmul=fp8"]),
    (RESNET, &["precision.compute=bf16"]),
    (BOTTLENECKS, &["precision.compute=bf16"]),
    (BOTTLENECKS, &["precision.compute=bf16", "precision.gradients=bf16", "memory.recompute=block"]),
    (
        LLAMA,
        &[
            "model.width=256",
            "precision.compute=bf16",
            "precision.matmul=fp8",
            "precision.fp8_recipe=rowwise",
            "memory.recompute=block",
        ],
    ),
    (GPT, &["model.width=128", "precision.compute=bf16", "precision.weights=f32", "model.vocabulary=1003"]),
    (
        LLAMA,
        &["model.width=256", "precision.compute=bf16", "precision.weights=f32", "memory.recompute=block"],
    ),
    (GPT, &["optim.state=8bit"]),
    (GPT, &["optim.kind=lion"]),
    (GPT, &["model.width=128", "precision.compute=bf16", "optim.state=8bit"]),
    (GPT, &["model.dropout=0.2"]),
    (GPT, &["train.neftune_alpha=5"]),
    (LLAMA, &["model.width=256", "train.neftune_alpha=5", "lora.rank=2", "precision.compute=bf16"]),
    (GPT, &["model.width=128", "model.dropout=0.2", "precision.compute=bf16", "memory.recompute=block"]),
    (GPT, &["model.loss_pieces=2", "model.vocabulary=1003", "model.tied=false"]),
    (GPT, &["model.width=128", "model.loss_pieces=2", "precision.compute=bf16"]),
    (LLAMA, &["model.logit_soft_cap=4.0", "model.key_value_heads=1"]),
    (LLAMA, &["model.width=256", "model.dropout=0.2", "model.qk_norm=true", "precision.compute=bf16"]),
    (
        LLAMA,
        &[
            "model.width=256",
            "model.tied=true",
            "model.loss_pieces=3",
            "model.logit_soft_cap=4.0",
            "precision.compute=bf16",
            "precision.gradients=bf16",
        ],
    ),
    (GPT, &["model.width=128", "precision.compute=bf16", "optim.offload=true"]),
    (GPT, &["precision.compute=bf16", "optim.state=8bit", "optim.offload=true", "model.width=128"]),
    (
        GPT,
        &[
            "model.width=128",
            "precision.compute=bf16",
            "memory.recompute=block",
            "memory.offload=activations",
            "optim.offload=true",
            "memory.offload_weights=true",
        ],
    ),
    (
        LLAMA,
        &[
            "model.width=128",
            "precision.compute=bf16",
            "precision.matmul=fp8",
            "optim.offload=true",
            "memory.offload_weights=true",
        ],
    ),
    (LLAMA, &["model.width=128", "precision.compute=bf16", "lora.rank=4", "lora.base=nf4"]),
    (
        LLAMA,
        &[
            "model.width=128",
            "precision.compute=bf16",
            "lora.rank=4",
            "lora.base=int4",
            "memory.recompute=block",
            "memory.offload=activations",
        ],
    ),
    (
        LLAMA,
        &[
            "model.width=128",
            "precision.compute=bf16",
            "lora.rank=4",
            "lora.base=nf4",
            "memory.offload_weights=true",
        ],
    ),
];

/// Checks that the plan, made on Meta, equals the run on a GPU. The CPU differs from both only in workspaces.
#[test]
fn gpu_plans_equal_runs() {
    if !gpu() {
        return;
    }
    let half = ["model.width=256", "model.context=128", "model.heads=4", "precision.compute=bf16"];
    let with = |setting: &str| {
        half.into_iter().map(str::to_owned).chain([format!("memory.allocator='{setting}'")]).collect()
    };
    let settings: Vec<Vec<String>> = SETTINGS.iter().map(|setting| with(setting)).collect();
    let settings: Vec<Vec<&str>> =
        settings.iter().map(|sets| sets.iter().map(String::as_str).collect()).collect();
    let table: Vec<(&str, &[&str])> =
        CASES.iter().copied().chain(settings.iter().map(|sets| (GPT, &sets[..]))).collect();
    for (text, overrides) in &table {
        let setup = prepare(config(text, overrides), Placement::one_gpu(0).unwrap()).unwrap();
        let report = run_on(DeviceChoice::Cuda, text, overrides);
        let ran = &report.ranks[0];
        let plan = plan(&setup, 0).unwrap();
        assert_eq!(figures(ran), planned(&plan.statistics), "{overrides:?}");
        assert!(plan.agrees(ran), "the host of {overrides:?}");
        if overrides.contains(&"precision.compute=bf16") {
            continue;
        }
        let host = run(text, &[overrides, &["parallel.data=1"][..]].concat());
        for category in Category::ALL.into_iter().filter(|category| *category != Category::Workspace) {
            let statistic = Statistic::LiveBytes(category);
            assert_eq!(host.ranks[0].get(statistic), ran.get(statistic), "{statistic:?} of {overrides:?}");
        }
    }
}

/// Checks that models with convolutions are refused on hosts without cuDNN before any GPU is used.
#[test]
fn convolutions_without_cudnn_are_refused() {
    if device::cuda::has_convolutions() {
        return;
    }
    let description = PlanDevice::shipped().unwrap().description(DeviceRanks::ALONE);
    let prepared = |text| {
        let gpus = Gpus { first_rank: 0, ordinals: vec![0], description: description.clone() };
        prepare(config(text, &["parallel.data=1"]), Placement::Cuda(gpus)).map(|_| ())
    };
    prepared(MLP).unwrap();
    let refused = prepared(RESNET).unwrap_err().to_string();
    assert!(refused.contains("install cuDNN 9"), "{refused}");
}

/// Checks that the calls logged on Meta equal the calls on a GPU: their number, order, families and kernels.
#[test]
fn the_calls_of_a_step_are_those_of_its_log() {
    if !gpu() {
        return;
    }
    let _alone = alone();
    for (text, sets) in CASES {
        // Checkpoints and later steps are not among a step's calls.
        let sets = sets.iter().copied().filter(|set| !set.starts_with("checkpoint"));
        let sets: Vec<_> = sets.chain(["parallel.data=1"]).collect();
        let setup = prepare(config(text, &sets), Placement::one_gpu(0).unwrap()).unwrap();
        ::run::prepare_kernels(&setup).unwrap();
        let mut logged = Vec::new();
        step_calls(&setup, 0).unwrap().for_each(|call| {
            let is_read = |kind: &CopyKind| matches!(kind, CopyKind::ToHost | CopyKind::ToHostLater);
            let name = match call {
                // Convolutions are compared without their kernels.
                LoggedCall::Kernel(kernel) if kernel.function.family().name != "convolution" => {
                    kernel.function.symbol()
                }
                LoggedCall::Copy { kind, bytes, .. } if is_read(kind) || *bytes == 0 => return,
                _ => String::new(),
            };
            logged.extend(CallSize::family(call).map(|family| (family, name)));
        });
        let mut worker = Worker::new(&setup, Communicator::solo()).unwrap();
        let device = worker.device().clone();
        worker.step(0).unwrap();
        device.begin_profile();
        worker.step(1).unwrap();
        let profile = device.end_profile().unwrap();
        let timed: Vec<_> = profile
            .into_iter()
            .map(|call| match call.family {
                "matmul" | "convolution" | "copy" => (call.family, String::new()),
                family => (family, call.name),
            })
            .collect();
        assert_eq!(timed, logged, "{sets:?}");
    }
}
