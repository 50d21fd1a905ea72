//! Training runs in this process.

use std::path::Path;

use super::token_files;
use config::RunConfig;
use run::RunError;
use run::{RunOptions, TrainReport};
use worker::DeviceChoice;

/// A small GPT on text of the repository.
pub(crate) const GPT: &str = r#"
[model]
kind = "gpt"
layers = 2
heads = 2
width = 32
context = 32
[data]
kind = "text"
paths = ["ARCHITECTURE.md", "crates/tensor/src/*.rs"]
[train]
steps = 6
micro_batch_size = 2
global_batch_size = 8
validation_micro_batches = 3
validate_every = 4
[optim]
warmup_steps = 2
[parallel]
lanes = 4
bucket_bytes = 65536
[precision]
compute = "f32"
"#;

/// A small Llama with grouped heads on the same text.
pub(crate) const LLAMA: &str = r#"
[model]
kind = "llama"
layers = 4
heads = 4
key_value_heads = 2
width = 32
context = 32
[data]
kind = "text"
paths = ["ARCHITECTURE.md", "crates/tensor/src/*.rs"]
[train]
steps = 4
micro_batch_size = 2
global_batch_size = 8
validation_micro_batches = 2
[optim]
warmup_steps = 2
clip_norm = 0.1
[parallel]
lanes = 4
bucket_bytes = 65536
[precision]
compute = "f32"
"#;

/// Options of a mixture of experts over [`LLAMA`] as in DeepSeek-V3: dense layers in between, sigmoid scores
/// with corrections in groups, shared experts, and both losses that balance loads.
pub(crate) const CORRECTED_EXPERTS: &[&str] = &[
    "model.experts=6",
    "model.expert_width=24",
    "model.shared_expert_width=16",
    "model.expert_layers=[1, 1, 0, 1]",
    "model.router_scores=sigmoid",
    "model.router_scale=1.5",
    "model.router_correction=true",
    "model.expert_groups=3",
    "model.expert_groups_per_token=2",
    "train.correction_rate=0.01",
    "train.balance_loss=0.01",
    "train.router_z_loss=0.001",
];

/// Options of a mixture of experts over [`LLAMA`] as in gpt-oss: biases everywhere, bounded gates.
pub(crate) const BIASED_EXPERTS: &[&str] = &[
    "model.experts=4",
    "model.mlp_bias=true",
    "model.router_bias=true",
    "model.gate_limit=0.1",
    "model.gate_offset=1.0",
    "model.activation=quick-gelu",
    "train.balance_loss=0.02",
];

/// Options of Gemma over [`LLAMA`]: windows in half of the layers, norms before and after branches with
/// weights less one, caps of both scores.
pub(crate) const WINDOWS_AND_CAPS: &[&str] = &[
    "model.window=9",
    "model.layer_types=['sliding_attention', 'full_attention']",
    "model.window_rope_theta=100.0",
    "model.norm_position=both",
    "model.norms_less_one=true",
    "model.qk_norm=true",
    "model.attention_soft_cap=2.0",
    "model.logit_soft_cap=5.0",
    "model.attention_scale=0.5",
    "model.embedding_scale=5.65",
    "model.activation=gelu",
    "model.tied=true",
];

/// Options of OLMo, SmolLM, Phi and Granite over [`LLAMA`]: windows in three of four layers, norms after
/// branches and over all heads, layers without positions, a part of each head that rotates, biases and
/// factors; and values wider than keys.
pub(crate) const WINDOWS_AND_FACTORS: &[&str] = &[
    "model.window=20",
    "model.layer_types=['sliding_attention', 'sliding_attention', 'sliding_attention', 'full_attention']",
    "model.norm_position=after",
    "model.qk_norm=true",
    "model.qk_norm_span=all",
    "model.rope_layers=[1, 1, 0]",
    "model.rope_width=6",
    "model.rope_scaling=yarn",
    "model.rope_original_context=16",
    "model.rope_high_turns=32.0",
    "model.qkv_bias=true",
    "model.output_bias=true",
    "model.mlp_bias=true",
    "model.residual_scale=0.5",
    "model.logit_scale=0.25",
    "model.padding_tokens=[10]",
    "model.value_width=16",
];

/// Attention with latents over [`LLAMA`], as in DeepSeek-V3.
pub(crate) const LATENTS: &[&str] = &[
    "model.key_value_heads=4",
    "model.latent_width=12",
    "model.query_latent_width=10",
    "model.head_width=14",
    "model.rope_width=4",
    "model.rope_interleaved=true",
    "model.value_width=6",
    "train.steps=2",
];

/// Latents of keys and values alone, with adapters of all linear layers.
pub(crate) const ADAPTED_LATENTS: &[&str] = &[
    "model.key_value_heads=4",
    "model.latent_width=16",
    "model.rope_width=4",
    "model.window=9",
    "lora.rank=2",
    "lora.targets=['all-linear']",
    "lora.dropout=0.1",
    "train.steps=2",
];

/// A small Llama on pairs of answers.
pub(crate) const PREFERENCE: &str = r#"
[model]
kind = "llama"
layers = 4
heads = 4
key_value_heads = 4
width = 32
context = 40
[data]
kind = "preference"
paths = ["tests/golden/preference.jsonl"]
validation_paths = ["tests/golden/preference.jsonl"]
[train]
steps = 3
micro_batch_size = 1
global_batch_size = 4
validation_micro_batches = 3
[optim]
warmup_steps = 2
[parallel]
lanes = 4
bucket_bytes = 65536
[precision]
compute = "f32"
"#;

/// A small GPT on the answers of made conversations.
pub(crate) const CHAT: &str = r#"
[model]
kind = "gpt"
layers = 4
heads = 2
width = 32
context = 64
[data]
kind = "chat"
paths = ["launch/recipes/chat/conversations.jsonl"]
chat_template = "launch/recipes/chat/template.jinja"
[train]
steps = 4
micro_batch_size = 2
global_batch_size = 8
validation_micro_batches = 3
[optim]
warmup_steps = 2
[parallel]
lanes = 4
bucket_bytes = 65536
[precision]
compute = "f32"
"#;

/// The five-layer MLP.
pub(crate) const MLP: &str = r#"
[model]
kind = "mlp"
sizes = [3, 300, 300, 400, 300, 100]
[data]
kind = "synthetic"
[train]
steps = 5
micro_batch_size = 10
global_batch_size = 80
[optim]
kind = "sgd"
learning_rate = 0.01
momentum = 0.9
[parallel]
lanes = 4
[precision]
compute = "f32"
"#;

/// A narrow ResNet-18 on small made images.
pub(crate) const RESNET: &str = r#"
[model]
kind = "resnet"
depth = 18
width = 0.125
classes = 10
image_size = 32
[data]
kind = "synthetic"
[train]
steps = 3
micro_batch_size = 4
global_batch_size = 32
validation_micro_batches = 2
validate_every = 2
[optim]
kind = "sgd"
learning_rate = 0.05
momentum = 0.9
weight_decay = 1e-4
[parallel]
lanes = 4
bucket_bytes = 65536
[precision]
compute = "f32"
"#;

/// The same depth of four stages with bottlenecks.
pub(crate) const BOTTLENECKS: &str = r#"
[model]
kind = "resnet"
depth = 50
width = 0.0625
classes = 10
image_size = 32
[data]
kind = "synthetic"
[train]
steps = 2
micro_batch_size = 4
global_batch_size = 16
[optim]
kind = "sgd"
learning_rate = 0.05
momentum = 0.9
[parallel]
lanes = 4
[precision]
compute = "f32"
"#;

/// Token shards in a shuffled order; [`token_files::fill`] has the files.
pub(crate) const TOKENS: [&str; 4] = [
    "data.kind=tokens",
    "data.paths=['{files}/shards/train_*.bin']",
    "data.validation_paths=['{files}/shards/val_*.bin']",
    "data.tokenizer={files}/tokenizer.json",
];

/// Token shards from their first token on.
pub(crate) const SEQUENTIAL: [&str; 4] = [
    "data.kind=tokens",
    "data.paths=['{files}/shards/*.bin']",
    "data.order=sequential",
    "model.vocabulary=512",
];

/// Packed documents with attention within each.
pub(crate) const PACKED: [&str; 5] = [
    "data.kind=tokens",
    "data.paths=['{files}/shards/*.bin']",
    "data.tokenizer={files}/tokenizer.json",
    "data.pack_documents=true",
    "data.document_mask=true",
];

/// Two texts of bytes.
pub(crate) const MIXTURE: [&str; 2] = [
    "data.paths=[]",
    "data.mixture=[{paths=['ARCHITECTURE.md'],weight=3},{paths=['crates/tensor/src/*.rs'],weight=1}]",
];

/// Two sets of token shards, each from its first token on.
pub(crate) const SEQUENTIAL_MIXTURE: [&str; 5] = [
    "data.kind=tokens",
    "data.paths=[]",
    "data.mixture=[{paths=['{files}/shards/train_*.bin'],weight=2},{paths=['{files}/shards/val_*.bin']}]",
    "data.order=sequential",
    "model.vocabulary=512",
];

/// Text that a tokenizer of a file makes tokens of.
pub(crate) const TOKENIZED: [&str; 2] = ["data.tokenizer={files}/tokenizer.json", "data.cache={files}/cache"];

/// Parses a test's configuration, whose paths are relative to the source tree.
pub(crate) fn config(text: &str, overrides: &[&str]) -> RunConfig {
    vision::register().unwrap();
    let overrides: Vec<String> = overrides.iter().map(|setting| token_files::fill(setting)).collect();
    RunConfig::parse(text, "test.toml", &super::root(), &overrides).unwrap()
}

/// Options of a quiet run on the CPU with its files in `run_dir`.
pub(crate) fn on_cpu(run_dir: &Path) -> RunOptions {
    RunOptions {
        device: DeviceChoice::Cpu,
        run_dir: Some(run_dir.to_owned()),
        quiet: true,
        ..RunOptions::default()
    }
}

/// Trains with files in `directory`.
pub(crate) fn train_in(
    directory: &Path,
    config: RunConfig,
    device: DeviceChoice,
) -> Result<TrainReport, RunError> {
    let run_dir = Some(directory.to_owned());
    let report = run::train(config, RunOptions { device, run_dir, quiet: true, ..RunOptions::default() })?;
    // In every test, no rank diverges from its plan and no step leaks.
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{report}");
    Ok(report)
}

/// Trains on the CPU in a temporary directory.
pub(crate) fn train(text: &str, overrides: &[&str]) -> TrainReport {
    let directory = tempfile::tempdir().unwrap();
    train_in(&directory.path().join("run"), config(text, overrides), DeviceChoice::Cpu).unwrap()
}
