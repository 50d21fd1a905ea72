//! Configurations whose predicted and measured steps are compared.

use config::RunConfig;

use crate::error::Result;
use crate::random_configs::random_config;

/// A configuration to predict and measure.
#[derive(Clone, Debug)]
pub struct PredictCase {
    /// Name of the model, or family of a random one.
    pub model: String,
    /// Keys besides the model's sizes, each as `section.key=value`.
    pub sets: Vec<String>,
    text: &'static str,
}

impl PredictCase {
    fn new(model: &'static str, text: &'static str, samples: usize, sets: &[&str]) -> Self {
        let sizes = ["micro", "global"].map(|batch| format!("train.{batch}_batch_size={samples}"));
        let lanes = ["parallel.data=1".to_owned(), "parallel.lanes=1".to_owned()];
        let sets = sizes.into_iter().chain(lanes).chain(sets.iter().map(|set| (*set).to_owned())).collect();
        PredictCase { model: model.to_owned(), sets, text }
    }

    /// Creates the random configuration of `family` with these keys.
    #[must_use]
    pub fn random(family: &str, sets: Vec<String>) -> Self {
        PredictCase { model: family.to_owned(), sets, text: "" }
    }

    /// Returns whether the configuration was drawn.
    pub(super) fn is_random(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the configuration with this model and these keys: one of [`predict_cases`] or a random one;
    /// `None` if none has them.
    pub(super) fn again(model: &str, sets: &[String]) -> Option<Self> {
        let is_same = |case: &PredictCase| case.model == model && case.sets == sets;
        let is_random = sets.first().is_some_and(|set| set.starts_with("model.kind="));
        let random = || is_random.then(|| PredictCase::random(model, sets.to_vec()));
        predict_cases().into_iter().find(is_same).or_else(random)
    }

    /// Returns the configuration.
    pub fn config(&self) -> Result<RunConfig> {
        if self.is_random() {
            return random_config(&self.sets);
        }
        Ok(RunConfig::parse(self.text, &self.model, std::path::Path::new("/"), &self.sets)?)
    }
}

const GPT_124M: &str = include_str!("../../../../launch/configs/gpt2-124m.toml");
const GPT_355M: &str = include_str!("../../../../launch/configs/gpt2-355m.toml");
const GPT_1558M: &str = include_str!("../../../../launch/configs/gpt2-1558m.toml");
const LLAMA_1B: &str = include_str!("../../../../launch/configs/llama3-1b.toml");
const GEMMA_1B: &str = include_str!("../../../../launch/configs/gemma3-1b.toml");
const RESNET_50: &str = include_str!("../../../../launch/configs/resnet50.toml");
const SHAKESPEARE: &str = include_str!("../../../../launch/configs/gpt-shakespeare.toml");
/// A model with the sizes of Qwen 3 0.6B.
const QWEN: &str = "[model]\nkind = \"llama\"\nlayers = 28\nheads = 16\nkey_value_heads = 8\nhead_width = 128\n\
                    width = 1024\nfeed_forward = 3072\ncontext = 4096\nvocabulary = 151936\nqk_norm = true\n\
                    [data]\nkind = \"synthetic\"\n[train]\nsteps = 100\n[parallel]\nlanes = 1\n";
const TINY_GPT: &str = "[model]\nkind = \"gpt\"\nlayers = 1\nheads = 2\nwidth = 32\ncontext = 16\n\
                        vocabulary = 64\n[data]\nkind = \"synthetic\"\n[train]\nsteps = 100\n";
const TINY_LLAMA: &str = "[model]\nkind = \"llama\"\nlayers = 1\nheads = 2\nwidth = 32\nfeed_forward = 64\n\
                          context = 16\nvocabulary = 64\n[data]\nkind = \"synthetic\"\n[train]\nsteps = 100\n";

const BF16: &str = "precision.compute=bf16";
const F16: &str = "precision.compute=f16";
const F32: &str = "precision.compute=f32";
const TF32: &str = "precision.tf32=true";
const FP8: &str = "precision.matmul=fp8";
const AGAIN: &str = "memory.recompute=block";
const LORA: &str = "lora.rank=16";

/// Returns the configurations for a GPU: common models, dtypes, sizes and techniques, and unusual widths.
#[must_use]
pub fn predict_cases() -> Vec<PredictCase> {
    let mut cases = Vec::new();
    let mut add = |model, text, samples: &[usize], sets: &[&str]| {
        cases.extend(samples.iter().map(|samples| PredictCase::new(model, text, *samples, sets)));
    };
    add("GPT-2 124M", GPT_124M, &[2, 4, 16, 64], &[BF16]);
    add("GPT-2 124M", GPT_124M, &[4, 16], &[F16]);
    add("GPT-2 124M", GPT_124M, &[2, 16], &[F32]);
    add("GPT-2 124M", GPT_124M, &[4, 16], &[F32, TF32]);
    add("GPT-2 124M", GPT_124M, &[16, 64], &[BF16, FP8]);
    add("GPT-2 124M", GPT_124M, &[64], &[BF16, AGAIN]);
    add("GPT-2 124M", GPT_124M, &[16], &[BF16, "model.dropout=0.1"]);
    add("GPT-2 124M", GPT_124M, &[16], &[BF16, "model.context=512"]);
    add("GPT-2 124M", GPT_124M, &[4], &[BF16, "model.context=4096"]);
    add("GPT-2 124M", GPT_124M, &[16], &[BF16, "model.width=720", "model.heads=10"]);
    add("GPT-2 124M", GPT_124M, &[16], &[BF16, "model.width=832", "model.heads=13"]);
    add("GPT-2 124M", GPT_124M, &[16], &[BF16, "model.vocabulary=50257"]);
    for (samples, micro_batch) in [(32, 4), (64, 16)] {
        let micro_batch = format!("train.micro_batch_size={micro_batch}");
        add("GPT-2 124M", GPT_124M, &[samples], &[BF16, &micro_batch]);
        add("GPT-2 124M", GPT_124M, &[samples], &[BF16, &micro_batch, "parallel.lanes=2"]);
    }
    // Numbers of tokens between the measured samples of a description.
    add("GPT-2 124M", GPT_124M, &[5, 6, 20, 24], &[BF16]);
    add("GPT-2 355M", GPT_355M, &[3], &[BF16]);
    add("GPT-2 1558M", GPT_1558M, &[6], &[BF16]);
    add("Llama 3 1B", LLAMA_1B, &[3], &[BF16]);
    add("Qwen 3 0.6B", QWEN, &[3], &[BF16]);
    add("GPT-2 355M", GPT_355M, &[1, 8, 32], &[BF16]);
    add("GPT-2 355M", GPT_355M, &[8], &[F32, TF32]);
    add("GPT-2 355M", GPT_355M, &[8], &[F16, AGAIN]);
    add("GPT-2 355M", GPT_355M, &[16], &[BF16, "optim.kind=lion"]);
    add("GPT-2 1558M", GPT_1558M, &[1, 4, 16, 40], &[BF16]);
    add("GPT-2 1558M", GPT_1558M, &[4, 16], &[BF16, FP8]);
    add("GPT-2 1558M", GPT_1558M, &[16], &[BF16, AGAIN]);
    add("GPT-2 1558M", GPT_1558M, &[2], &[F32, TF32]);
    add("Llama 3 1B", LLAMA_1B, &[1, 2, 4, 16], &[BF16]);
    add("Llama 3 1B", LLAMA_1B, &[2], &[F16]);
    add("Llama 3 1B", LLAMA_1B, &[1, 4], &[BF16, FP8]);
    add("Llama 3 1B", LLAMA_1B, &[1, 4], &[BF16, LORA]);
    add("Llama 3 1B", LLAMA_1B, &[4], &[BF16, LORA, "lora.base=nf4"]);
    add("Llama 3 1B", LLAMA_1B, &[4], &[BF16, AGAIN]);
    add("Llama 3 1B", LLAMA_1B, &[1], &[F32, TF32]);
    add("Llama 3 1B", LLAMA_1B, &[8], &[BF16, "model.context=1024"]);
    for context in ["model.context=65536", "model.context=131072"] {
        let wide = ["model.layers=2", "model.heads=16", "model.key_value_heads=4", "model.head_width=128"];
        let long = [&[BF16, AGAIN, context], &wide[..]].concat();
        add("Llama 3 1B", LLAMA_1B, &[1], &long);
        add("Llama 3 1B", LLAMA_1B, &[1], &[&long[..], &["parallel.context_lanes=8"]].concat());
    }
    add("Qwen 3 0.6B", QWEN, &[1, 2, 4], &[BF16]);
    add("Qwen 3 0.6B", QWEN, &[2], &[BF16, FP8]);
    add("Qwen 3 0.6B", QWEN, &[2], &[BF16, LORA]);
    add("Gemma 3 1B", GEMMA_1B, &[1, 2], &[BF16]);
    add("Gemma 3 1B", GEMMA_1B, &[2], &[BF16, AGAIN]);
    add("Gemma 3 1B", GEMMA_1B, &[2], &[BF16, LORA]);
    add("ResNet-50", RESNET_50, &[16, 64, 256], &[BF16]);
    add("ResNet-50", RESNET_50, &[64], &[F16]);
    add("ResNet-50", RESNET_50, &[64], &[F32]);
    add("ResNet-50", RESNET_50, &[64], &[F32, TF32]);
    add("ResNet-50", RESNET_50, &[64], &[BF16, "model.depth=18"]);
    add("ResNet-50", RESNET_50, &[64], &[BF16, "model.depth=101"]);
    add("GPT Shakespeare", SHAKESPEARE, &[64], &[BF16]);
    add("GPT Shakespeare", SHAKESPEARE, &[64, 256], &[BF16, "model.dropout=0.2"]);
    add("GPT Shakespeare", SHAKESPEARE, &[64], &[F32]);
    cases
}

/// Returns small configurations for a CPU, to test the comparison.
#[must_use]
pub fn tiny_predict_cases() -> Vec<PredictCase> {
    let mut cases: Vec<_> =
        [1, 4].map(|samples| PredictCase::new("tiny GPT", TINY_GPT, samples, &[F32])).into();
    cases.push(PredictCase::new("tiny GPT", TINY_GPT, 2, &[F32, AGAIN]));
    cases.push(PredictCase::new("tiny Llama", TINY_LLAMA, 2, &[F32]));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_configurations_of_all_kinds() {
        vision::register().unwrap();
        let cases = predict_cases();
        assert!(cases.len() >= 60, "{}", cases.len());
        for case in cases.iter().chain(&tiny_predict_cases()) {
            case.config().unwrap_or_else(|error| panic!("{case:?}: {error}"));
        }
        let mut all: Vec<_> = cases.iter().map(|case| (&case.model, &case.sets)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), cases.len());
    }
}
