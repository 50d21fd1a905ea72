//! The recorded models of supported families, and settings of the tests that use them.

use std::path::PathBuf;

use crate::common::{golden, sizes};

/// Recorded models of supported families.
pub(crate) const MODELS: &[&str] = &[
    "models/gpt2",
    "models/llama",
    "models/mistral",
    "models/qwen2",
    "models/qwen3",
    "families/cohere2",
    "families/deepseek",
    "families/deepseek-v3",
    "families/ernie4.5-moe",
    "families/exaone4",
    "families/gemma2",
    "families/gemma3",
    "families/gemma4",
    "families/gemma4-shared",
    "families/glm4-moe",
    "families/glm4-moe-lite",
    "families/gpt-oss",
    "families/granite",
    "families/falcon-h1",
    "families/granite4",
    "families/hunyuan",
    "families/kimi-linear",
    "families/lfm2",
    "families/minimax-m2",
    "families/ministral",
    "families/ministral3",
    "families/mistral",
    "families/mixtral",
    "families/nanochat",
    "families/nemotron-h",
    "families/olmo-hybrid",
    "families/olmo2",
    "families/olmo3",
    "families/olmoe",
    "families/phi3",
    "families/phi4",
    "families/qwen3-moe",
    "families/qwen3-next",
    "families/qwen3.5",
    "families/qwen3.5-moe",
    "families/seed-oss",
    "families/smollm3",
];

/// Models without recorded texts.
pub(crate) const WITHOUT_TEXTS: [&str; 2] = ["models/mistral", "families/phi4"];

/// Recorded models with questions.
pub(crate) const WITH_QUESTIONS: &[&str] = &["models/gpt2", "models/llama", "models/qwen2", "models/qwen3"];

/// Models with layers that have a state over the sequence.
pub(crate) const RECURRENT: &[&str] = &[
    "families/falcon-h1",
    "families/granite4",
    "families/kimi-linear",
    "families/lfm2",
    "families/nemotron-h",
    "families/olmo-hybrid",
    "families/qwen3-next",
    "families/qwen3.5",
    "families/qwen3.5-moe",
];

/// A model whose layers cannot be divided, because it has one key and value head.
pub(crate) const WHOLE: &str = "models/qwen2";

/// A model whose stages send keys, values and embeddings beside the residual stream.
pub(crate) const CARRIED: &str = "families/gemma4-shared";

/// Returns the folder of a recorded model.
pub(crate) fn folder(name: &str) -> PathBuf {
    golden(name)
}

/// Returns whether a model is tested on all grids: two models, or with `PLIMSOLL_LONG_TESTS` all.
pub(crate) fn is_on_all_grids(name: &str) -> bool {
    matches!(name, "models/gpt2" | "models/qwen3") || sizes::are_wanted()
}
