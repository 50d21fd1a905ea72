//! The steps whose calls are measured: models, sizes and dtypes that cover most others.

use std::path::Path;

use config::RunConfig;
use device::DType;

use crate::error::Result;

/// Models of measured steps. With fewer layers, the head would take a larger fraction of the step, and the
/// clock at the power limit would be lower than for whole models.
const GPT: &str = "[model]\nkind = \"gpt\"\nlayers = 12\nheads = 12\nwidth = 768\ncontext = 1024\n\
                   vocabulary = 32768\n";
const LLAMA: &str = "[model]\nkind = \"llama\"\nlayers = 8\nheads = 16\nkey_value_heads = 4\nwidth = 2048\n\
                     feed_forward = 5632\ncontext = 2048\nvocabulary = 32768\n";
/// A model with head width 64, longer sequences and a large vocabulary.
const LONGER: &str = "[model]\nkind = \"llama\"\nlayers = 8\nheads = 32\nkey_value_heads = 8\nwidth = 2048\n\
                      feed_forward = 8192\ncontext = 4096\nvocabulary = 131072\n";
/// A model with norms of queries and keys, and a large head width.
const NORMED: &str = "[model]\nkind = \"llama\"\nlayers = 8\nheads = 16\nkey_value_heads = 8\nhead_width = 128\n\
                      width = 1024\nfeed_forward = 3072\ncontext = 4096\nvocabulary = 65536\nqk_norm = true\n";
/// A model with windows, wide heads, norms on both sides of a layer, and a very large vocabulary.
const WINDOWED: &str = "[model]\nkind = \"llama\"\nlayers = 8\nheads = 4\nkey_value_heads = 1\nhead_width = 256\n\
                        width = 1152\nfeed_forward = 6912\ncontext = 4096\nvocabulary = 196608\ntied = true\n\
                        activation = \"gelu\"\nqk_norm = true\nnorm_position = \"both\"\nnorms_less_one = true\n\
                        window = 512\nlayer_types = [\"sliding_attention\", \"sliding_attention\", \
                        \"sliding_attention\", \"full_attention\", \"sliding_attention\", \"sliding_attention\", \
                        \"sliding_attention\", \"full_attention\"]\nembedding_scale = 33.9\n";
const RESNET: &str = "[model]\nkind = \"resnet\"\ndepth = 50\nclasses = 1000\nimage_size = 224\n";

/// Width, heads, context and numbers of samples of the measured GPTs.
const GPTS: [(usize, usize, usize, &[usize]); 9] = [
    (384, 6, 256, &[16, 64, 256]),
    (512, 8, 512, &[4, 32]),
    (768, 12, 1024, &[1, 2, 3, 4, 6, 8, 12, 16, 32, 64]),
    (768, 12, 4096, &[2, 4]),
    (896, 14, 1024, &[8, 16]),
    (1024, 16, 1024, &[1, 4, 8, 32]),
    (1280, 20, 1024, &[2, 8]),
    (1600, 25, 1024, &[1, 4, 16]),
    (2048, 16, 2048, &[2]),
];

#[derive(Clone, Debug)]
pub(super) struct MeasuredModel {
    model: &'static str,
    keys: Vec<String>,
    samples: usize,
    micro_batches: usize,
    /// Whether the step is replayed as CUDA graphs if possible.
    graphs: bool,
}

impl MeasuredModel {
    pub(super) fn config(&self) -> Result<RunConfig> {
        let samples = self.samples;
        let all = self.samples * self.micro_batches;
        let graphs = if self.graphs { "auto" } else { "off" };
        // The learning rate changes in every step, so every step copies it to the device.
        let text = format!(
            "{}[data]\nkind = \"synthetic\"\n[train]\nsteps = 1000000\ngraphs = \"{graphs}\"\nmicro_batch_size = {samples}\n\
             global_batch_size = {all}\n[optim]\nlearning_rate = 3e-4\nwarmup_steps = 2\nschedule = \"linear\"\n\
             [parallel]\nlanes = 1\n",
            self.model
        );
        Ok(RunConfig::parse(&text, "the measurement", Path::new("/"), &self.keys)?)
    }

    /// Returns a GPT step that the device finishes before the host has enqueued it.
    pub(super) fn small() -> Self {
        let keys = ["precision.compute=bf16", "model.width=64", "model.heads=1", "model.context=64"];
        let keys = keys.map(str::to_owned).into();
        MeasuredModel { model: GPT, keys, samples: 1, micro_batches: 1, graphs: false }
    }

    /// Returns steps of many short calls that take longer on the device than on the host and stay below the
    /// GPU's power limit.
    pub(super) fn many_calls() -> Vec<Self> {
        let to_step = |(samples, keys): (usize, &[&str])| {
            let keys = ["precision.compute=bf16"].iter().chain(keys).map(|key| (*key).to_owned()).collect();
            MeasuredModel { model: GPT, keys, samples, micro_batches: 1, graphs: false }
        };
        let narrow: &[&str] = &["model.width=384", "model.heads=6", "model.context=256"];
        [(1, &[][..]), (2, &[]), (64, narrow)].map(to_step).into()
    }

    /// Returns the same step, replayed as CUDA graphs.
    pub(super) fn in_graphs(self) -> Self {
        MeasuredModel { graphs: true, ..self }
    }

    /// Returns a ResNet step in `dtype` that the device finishes before the host has enqueued it.
    pub(super) fn small_convolutions(dtype: DType) -> Self {
        let keys = vec![format!("precision.compute={dtype}"), "model.image_size=32".to_owned()];
        MeasuredModel { model: RESNET, keys, samples: 2, micro_batches: 1, graphs: false }
    }
}

/// Returns the steps to measure, grouped by dtype.
pub(super) fn steps() -> Vec<MeasuredModel> {
    Steps::all()
}

/// Returns a few of these steps, of each dtype and each bound: by power, by memory and by short calls.
pub(super) fn quick_steps() -> Vec<MeasuredModel> {
    let bf16 = "precision.compute=bf16";
    let mut steps = Steps::default();
    steps.add(GPT, &[2, 16], &[bf16]);
    steps.add(LONGER, &[2], &[bf16]);
    steps.add(NORMED, &[2], &[bf16]);
    steps.add(GPT, &[16], &["precision.compute=f16"]);
    steps.add(LONGER, &[4], &[bf16, "precision.matmul=fp8"]);
    steps.add(GPT, &[16], &["precision.compute=f32", "precision.tf32=true"]);
    steps.add(GPT, &[2], &["precision.compute=f32"]);
    steps.add(RESNET, &[128], &[bf16]);
    steps.0
}

#[derive(Default)]
struct Steps(Vec<MeasuredModel>);

impl Steps {
    fn add(&mut self, model: &'static str, samples: &[usize], keys: &[&str]) {
        let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
        // Several micro-batches accumulate gradients, as in most runs.
        let micro_batches = if model == RESNET { 1 } else { 2 };
        let step = |samples: &usize| {
            let keys = keys.clone();
            let samples = *samples;
            MeasuredModel { model, keys, samples, micro_batches, graphs: true }
        };
        self.0.extend(samples.iter().map(step));
    }

    /// Adds the measured GPTs whose width and number of samples pass the filter.
    fn add_gpts(&mut self, keys: &[&str], filter: impl Fn(usize, usize) -> bool) {
        for (width, heads, context, samples) in GPTS {
            let samples: Vec<_> = samples.iter().copied().filter(|samples| filter(width, *samples)).collect();
            let sizes = [("width", width), ("heads", heads), ("context", context)];
            let sizes = sizes.map(|(key, value)| format!("model.{key}={value}"));
            let keys: Vec<_> = keys.iter().copied().chain(sizes.iter().map(String::as_str)).collect();
            self.add(GPT, &samples, &keys);
        }
    }

    /// Returns all steps, grouped by dtype.
    fn all() -> Vec<MeasuredModel> {
        let mut steps = Steps::default();
        steps.add_bf16();
        let f16 = "precision.compute=f16";
        let few = |width, samples| matches!((width, samples), (768, 4 | 16) | (1024, 8) | (1600, 4));
        steps.add_gpts(&[f16], few);
        steps.add(LONGER, &[2], &[f16]);
        steps.add(RESNET, &[16, 32, 128], &[f16]);
        let fp8 = &["precision.compute=bf16", "precision.matmul=fp8"];
        let few =
            |width, samples| matches!((width, samples), (768, 4 | 16 | 64) | (1024, 8) | (1600, 4 | 16));
        steps.add_gpts(fp8, few);
        steps.add(LLAMA, &[3], fp8);
        steps.add(LONGER, &[1, 4], fp8);
        steps.add(NORMED, &[2], fp8);
        let tf32 = &["precision.compute=f32", "precision.tf32=true"];
        let few = |width, samples| matches!((width, samples), (768, 4 | 16) | (1024, 8) | (1600, 1));
        steps.add_gpts(tf32, few);
        steps.add(LONGER, &[1], tf32);
        steps.add(RESNET, &[32, 128], tf32);
        let f32 = "precision.compute=f32";
        let few = |width, samples| matches!((width, samples), (384, 64) | (768, 2 | 8) | (1024, 4));
        steps.add_gpts(&[f32], few);
        steps.add(LLAMA, &[1], &[f32]);
        steps.add(RESNET, &[32, 128], &[f32]);
        steps.0
    }

    /// Adds steps in bf16, in which most models are trained.
    fn add_bf16(&mut self) {
        let bf16 = "precision.compute=bf16";
        self.add_gpts(&[bf16], |_, _| true);
        self.add(GPT, &[4, 16], &[bf16, "model.vocabulary=33333"]);
        self.add(GPT, &[8], &[bf16, "optim.kind=lion"]);
        self.add_gpts(&[bf16, "model.dropout=0.1"], |width, samples| {
            matches!((width, samples), (384, _) | (768, 4 | 32) | (1024, 4))
        });
        // Heads whose width is not a multiple of 16.
        self.add(GPT, &[4], &[bf16, "model.width=672"]);
        self.add(GPT, &[16], &[bf16, "model.width=720", "model.heads=10"]);
        self.add(LLAMA, &[1, 4], &[bf16]);
        let wide = ["model.width=4096", "model.heads=32", "model.feed_forward=14336"];
        for (samples, context) in [(&[1, 3][..], "model.context=2048"), (&[1], "model.context=8192")] {
            self.add(LLAMA, samples, &[&[bf16, context], &wide[..]].concat());
        }
        self.add(LLAMA, &[4], &[bf16, "model.width=1536", "model.heads=6", "model.key_value_heads=2"]);
        self.add(LLAMA, &[4], &[bf16, "lora.rank=16"]);
        for context in ["model.context=16384", "model.context=32768"] {
            self.add(LONGER, &[1], &[bf16, context]);
        }
        self.add(LLAMA, &[1], &[bf16, "model.context=32768"]);
        // Long sequences, whole and in pieces. Few layers suffice, for attention takes most of the step.
        for context in ["model.context=65536", "model.context=131072"] {
            let long = [bf16, context, "model.layers=2", "memory.recompute=block"];
            self.add(LLAMA, &[1], &long);
            self.add(LLAMA, &[1], &[&long[..], &["parallel.context_lanes=8"]].concat());
        }
        for base in ["lora.base=nf4", "lora.base=fp8"] {
            self.add(LLAMA, &[4], &[bf16, "lora.rank=16", base]);
        }
        // Matmuls with many rows.
        self.add(LONGER, &[12], &[bf16]);
        for model in [LONGER, NORMED] {
            self.add(model, &[1, 2, 4], &[bf16]);
            self.add(model, &[2], &[bf16, "lora.rank=16"]);
        }
        self.add(WINDOWED, &[1, 2], &[bf16]);
        self.add(WINDOWED, &[2], &[bf16, "lora.rank=16"]);
        self.add(RESNET, &[8, 32, 128, 512], &[bf16]);
        self.add(RESNET, &[32], &[bf16, "model.depth=34"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise their calls could not be compared with a description's.
    #[test]
    fn quick_steps_are_among_all_steps() {
        let all = steps();
        for quick in quick_steps() {
            let is_same = |step: &MeasuredModel| (step.model, step.samples) == (quick.model, quick.samples);
            let same = all.iter().filter(|step| is_same(step) && step.micro_batches == quick.micro_batches);
            let sorted = |keys: &[String]| keys.iter().cloned().collect::<std::collections::BTreeSet<_>>();
            assert!(
                same.into_iter().any(|step| sorted(&quick.keys).is_subset(&sorted(&step.keys))),
                "{quick:?}"
            );
        }
    }

    #[test]
    fn every_measured_step_runs_on_a_large_gpu() {
        vision::register().unwrap();
        let target = plan::PlanTarget::from_argument("h200").unwrap();
        let all = steps();
        assert!(all.len() > 60, "{}", all.len());
        let small = [DType::Bf16, DType::F16, DType::F32].map(MeasuredModel::small_convolutions);
        let tiny = [MeasuredModel::small(), MeasuredModel::small().in_graphs()];
        for step in all.into_iter().chain(tiny).chain(MeasuredModel::many_calls()).chain(small) {
            let config = step.config().unwrap();
            let ranks = plan::DeviceRanks::from_config(&config);
            let device = target.device(None, ranks).unwrap();
            let placement = worker::Placement::Meta(device.description(ranks));
            let setup = plan::prepare_shapes(config, placement).unwrap();
            assert!(!plan::step_calls(&setup, 0).unwrap().calls.is_empty(), "{step:?}");
        }
    }
}
