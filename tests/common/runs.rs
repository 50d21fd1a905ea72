//! Configurations of small models, and training runs in this process.

use std::path::Path;

use super::token_files;
use config::RunConfig;
use run::RunError;
use run::{RunOptions, TrainReport};
use worker::DeviceChoice;

/// Configuration of a small GPT on text of the repository.
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

/// Configuration of a small Llama with grouped heads on the same text.
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

/// Overrides of [`LLAMA`] for experts as in DeepSeek-V3: interleaved dense layers, sigmoid scores with
/// corrections in groups, shared experts, and both load-balancing losses.
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

/// Overrides of [`LLAMA`] for experts as in gpt-oss: biases everywhere, and clamped gates.
pub(crate) const BIASED_EXPERTS: &[&str] = &[
    "model.experts=4",
    "model.mlp_bias=true",
    "model.router_bias=true",
    "model.gate_limit=0.1",
    "model.gate_offset=1.0",
    "model.activation=quick-gelu",
    "train.balance_loss=0.02",
];

/// Overrides of [`LLAMA`] as in Gemma: windows in half of the layers, norms before and after branches with
/// weights stored minus one, and soft caps on attention scores and logits.
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

/// Layers without a gate and norms without weights, as in nanochat.
pub(crate) const WITHOUT_GATES: &[&str] = &[
    "model.gated=false",
    "model.activation=relu-squared",
    "model.norm_weights=false",
    "model.embedding_norm=true",
    "model.qk_norm=true",
    "model.qk_norm_last=true",
    "model.rope_reversed=true",
    "model.query_growth=0.1",
    "model.rope_original_context=8",
];

/// Layers of one branch each, and experts of latents without a gate, as in Nemotron-H.
pub(crate) const SINGLE_BRANCHES: &[&str] = &[
    "model.single_branches=true",
    "model.layer_types=['state_space', 'feed_forward', 'full_attention', 'feed_forward']",
    "model.gated=false",
    "model.activation=relu-squared",
    "model.experts=6",
    "model.expert_layers=[0, 1, 0, 0]",
    "model.expert_width=24",
    "model.expert_latent_width=16",
    "model.shared_expert_width=16",
    "model.router_scores=sigmoid",
    "model.router_scale=1.5",
    "model.router_correction=true",
    "model.state_heads=4",
    "model.state_head_width=6",
    "model.state_width=5",
    "model.state_groups=2",
    "model.state_norm_groups=2",
    "model.rope_layers=[0]",
    "train.correction_rate=0.01",
    "train.steps=3",
];

/// Branches side by side after a layer norm, as in Cohere 2.
pub(crate) const PARALLEL_BRANCHES: &[&str] = &[
    "model.parallel_branches=true",
    "model.norm_kind=layer",
    "model.window=20",
    "model.layer_types=['sliding_attention', 'full_attention']",
    "model.rope_layers=[1, 0]",
];

/// Heads by type of layer, keys used as values, and embeddings for each layer, as in Gemma 4.
pub(crate) const LAYER_EMBEDDINGS: &[&str] = &[
    "model.window=20",
    "model.layer_types=['sliding_attention', 'full_attention']",
    "model.full_head_width=16",
    "model.keys_as_values=true",
    "model.value_norm=true",
    "model.qk_norm=true",
    "model.rope_share=0.5",
    "model.layer_embedding_width=8",
    "model.layer_factors=true",
    "model.norm_position=both",
];

/// Last layers that use keys and values of the first ones, as in Gemma 4.
pub(crate) const SHARED_KEYS: &[&str] = &[
    "model.window=20",
    "model.layer_types=['sliding_attention', 'full_attention']",
    "model.shared_layers=2",
    "model.shared_layers_feed_forward=48",
    "train.steps=2",
];

/// Overrides of [`LLAMA`] as in OLMo, SmolLM, Phi and Granite: windows in three of four layers, norms after
/// branches and over all heads, layers without positions, partial rotation, biases and multipliers; and
/// values wider than keys.
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

/// Overrides of [`LLAMA`] for latent attention, as in DeepSeek-V3.
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

/// Overrides of [`LLAMA`] for latents of keys and values only, with adapters on all linear layers.
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

/// Configuration of a small Llama on preference pairs.
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

/// Configuration of a small GPT on the answers of generated conversations.
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

/// Configuration of the five-layer MLP.
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

/// Configuration of a narrow ResNet-18 on small generated images.
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

/// Configuration of a ResNet with bottlenecks of the same depth in four stages.
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

/// Overrides for shuffled token shards; [`token_files::fill`] creates the files.
pub(crate) const TOKENS: [&str; 4] = [
    "data.kind=tokens",
    "data.paths=['{files}/shards/train_*.bin']",
    "data.validation_paths=['{files}/shards/val_*.bin']",
    "data.tokenizer={files}/tokenizer.json",
];

/// Overrides for token shards in sequential order.
pub(crate) const SEQUENTIAL: [&str; 4] = [
    "data.kind=tokens",
    "data.paths=['{files}/shards/*.bin']",
    "data.order=sequential",
    "model.vocabulary=512",
];

/// Overrides for packed documents with attention within each document.
pub(crate) const PACKED: [&str; 5] = [
    "data.kind=tokens",
    "data.paths=['{files}/shards/*.bin']",
    "data.tokenizer={files}/tokenizer.json",
    "data.pack_documents=true",
    "data.document_mask=true",
];

/// Overrides for a mixture of two texts as bytes.
pub(crate) const MIXTURE: [&str; 2] = [
    "data.paths=[]",
    "data.mixture=[{paths=['ARCHITECTURE.md'],weight=3},{paths=['crates/tensor/src/*.rs'],weight=1}]",
];

/// Overrides for a mixture of two sets of token shards in sequential order.
pub(crate) const SEQUENTIAL_MIXTURE: [&str; 5] = [
    "data.kind=tokens",
    "data.paths=[]",
    "data.mixture=[{paths=['{files}/shards/train_*.bin'],weight=2},{paths=['{files}/shards/val_*.bin']}]",
    "data.order=sequential",
    "model.vocabulary=512",
];

/// Overrides for text that is tokenized with a tokenizer file.
pub(crate) const TOKENIZED: [&str; 2] = ["data.tokenizer={files}/tokenizer.json", "data.cache={files}/cache"];

/// Parses a configuration with overrides; its paths are relative to the source tree.
pub(crate) fn config(text: &str, overrides: &[&str]) -> RunConfig {
    vision::register().unwrap();
    let overrides: Vec<String> = overrides.iter().map(|setting| token_files::fill(setting)).collect();
    RunConfig::parse(text, "test.toml", &super::root(), &overrides).unwrap()
}

/// Returns options of a quiet run on the CPU with its files in `run_dir`.
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
    // In every test, no rank may diverge from its plan and no step may leak.
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{report}");
    Ok(report)
}

/// Trains on the CPU in a temporary directory.
pub(crate) fn train(text: &str, overrides: &[&str]) -> TrainReport {
    let directory = tempfile::tempdir().unwrap();
    train_in(&directory.path().join("run"), config(text, overrides), DeviceChoice::Cpu).unwrap()
}
