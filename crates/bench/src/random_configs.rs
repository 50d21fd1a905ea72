//! Random configurations, whose steps are measured.
//!
//! A configuration is a function of the seed and its number. It has sizes, precisions, optimizers and
//! techniques that nobody chose, and takes a few milliseconds to a second on a large GPU.

mod draw;

use std::path::Path;

use config::RunConfig;

use crate::error::Result;
use draw::Draw;

/// Text of every random configuration.
const TEXT: &str = "[data]\nkind = \"synthetic\"\n[train]\nsteps = 1000\n";

/// A random configuration.
#[derive(Clone, Debug)]
pub struct RandomConfig {
    /// Family of the model.
    pub family: &'static str,
    /// Keys of the configuration, each as `section.key=value`.
    pub sets: Vec<String>,
}

impl RandomConfig {
    /// Returns the configuration.
    pub fn config(&self) -> Result<RunConfig> {
        random_config(&self.sets)
    }
}

/// Returns the random configuration with these keys.
pub(crate) fn random_config(sets: &[String]) -> Result<RunConfig> {
    Ok(RunConfig::parse(TEXT, "a random configuration", Path::new("/"), sets)?)
}

/// Ranks of random configurations.
#[derive(Clone, Copy, Debug)]
pub struct RandomRanks {
    /// Number of ranks.
    pub ranks: usize,
    /// Whether all ranks share one GPU.
    pub share_gpu: bool,
}

/// Shortest and longest estimated step in seconds.
const STEP: [f64; 2] = [1.5e-3, 0.7];
/// Most bytes of parameters, gradients and optimizer state.
const MOST_STATE: f64 = 60e9;
/// Bytes of each parameter with its gradient, master weight and moments.
const BYTES_OF_PARAMETER: f64 = 18.0;

/// Returns an endless iterator over random configurations. Configurations that Plimsoll refuses are drawn
/// again.
pub fn random_configs(seed: u64, ranks: RandomRanks) -> impl Iterator<Item = RandomConfig> {
    (0..).filter_map(move |number| drawn(&mut Draw::new(seed, number), ranks))
}

/// Returns the configuration drawn from `draw`; `None` if it is refused, too small or too large.
fn drawn(draw: &mut Draw, ranks: RandomRanks) -> Option<RandomConfig> {
    let mut drawn = Drawn::default();
    let family = match draw.unit() {
        _ if ranks.ranks > 1 && draw.chance(0.85) => "llama",
        share if share < 0.28 => "gpt",
        share if share < 0.83 => "llama",
        share if share < 0.96 => "resnet",
        _ => "mlp",
    };
    drawn.set("model.kind", family);
    let precision = drawn.precision(draw);
    match family {
        "resnet" => drawn.resnet(draw),
        "mlp" => drawn.mlp(draw),
        _ => drawn.transformer(draw, family == "gpt", ranks),
    }
    drawn.optimizer(draw, matches!(family, "gpt" | "llama"));
    drawn.batch(draw, ranks);
    drawn.grid(draw, ranks, matches!(family, "gpt" | "llama"));
    // FLOP/s that such a step usually reaches.
    let rate = match precision {
        "f32" => 40e12,
        "tf32" => 250e12,
        "fp8" => 500e12,
        _ => 400e12,
    };
    let gpus = if ranks.share_gpu { 1 } else { ranks.ranks };
    let seconds = drawn.flops() / rate / gpus as f64;
    let fits = drawn.parameters * BYTES_OF_PARAMETER <= MOST_STATE;
    let case = RandomConfig { family, sets: drawn.sets };
    let is_measurable = (STEP[0]..STEP[1]).contains(&seconds) && fits;
    (is_measurable && case.config().is_ok()).then_some(case)
}

/// A configuration that is being drawn.
#[derive(Default)]
struct Drawn {
    sets: Vec<String>,
    /// Parameters of the model.
    parameters: f64,
    /// Active parameters: multiply-adds per token, or per image.
    active: f64,
    /// FLOPs of attention for each token.
    attention: f64,
    /// Tokens, or images, of a micro-batch.
    tokens: usize,
    micro_batch: usize,
    micro_batches: usize,
}

impl Drawn {
    fn set(&mut self, key: &str, value: impl std::fmt::Display) {
        self.sets.push(format!("{key}={value}"));
    }

    fn flops(&self) -> f64 {
        let tokens = (self.tokens * self.micro_batches) as f64;
        tokens * (6.0 * self.active + 3.0 * self.attention)
    }

    fn precision(&mut self, draw: &mut Draw) -> &'static str {
        let kinds = ["bf16", "bf16", "bf16", "bf16", "bf16", "f16", "fp8", "fp8", "tf32", "f32"];
        let precision = draw.one(&kinds);
        match precision {
            "fp8" => {
                self.set("precision.compute", "bf16");
                self.set("precision.matmul", "fp8");
                if draw.chance(0.3) {
                    self.set("precision.fp8_recipe", "rowwise");
                }
            }
            "tf32" => {
                self.set("precision.compute", "f32");
                self.set("precision.tf32", true);
            }
            precision => self.set("precision.compute", precision),
        }
        if precision == "bf16" && draw.chance(0.25) {
            self.set("precision.gradients", "bf16");
        }
        precision
    }

    fn resnet(&mut self, draw: &mut Draw) {
        let (depth, multiply_adds) =
            draw.one(&[(18, 1.8e9), (34, 3.6e9), (50, 4.1e9), (101, 7.8e9), (152, 11.5e9)]);
        let image = draw.one(&[96, 128, 160, 192, 224, 256, 288]);
        self.set("model.depth", depth);
        self.set("model.image_size", image);
        self.set("model.classes", draw.one(&[10, 100, 365, 1000]));
        self.micro_batch = draw.spread(8, 384);
        self.tokens = self.micro_batch;
        self.parameters = 25e6;
        self.active = multiply_adds * f64::from(image * image) / f64::from(224 * 224);
    }

    fn mlp(&mut self, draw: &mut Draw) {
        let sizes: Vec<usize> = (0..=draw.spread(2, 8)).map(|_| draw.multiple(8, 256, 16384)).collect();
        self.active = sizes.windows(2).map(|pair| (pair[0] * pair[1]) as f64).sum();
        self.parameters = self.active;
        self.set("model.sizes", format!("{sizes:?}"));
        self.micro_batch = draw.multiple(8, 256, 16384);
        self.tokens = self.micro_batch;
    }

    fn transformer(&mut self, draw: &mut Draw, is_gpt: bool, ranks: RandomRanks) {
        let head_width = draw.one(&[32, 48, 64, 64, 64, 80, 96, 112, 128, 128, 128, 192, 256]);
        let target = draw.spread(384, 4608);
        let even = if ranks.ranks > 1 { ranks.ranks } else { 1 };
        let heads = (target / head_width).max(2).next_multiple_of(even);
        let groups: Vec<usize> = (1..=heads).filter(|groups| heads.is_multiple_of(*groups)).collect();
        let key_value_heads = if is_gpt { heads } else { draw.one(&groups).max(even) };
        let width = if is_gpt { heads * head_width } else { target.next_multiple_of(16) };
        let layers = draw.spread(2, 24);
        let context = match draw.unit() {
            share if share < 0.06 => draw.one(&[16384, 32768]),
            share if share < 0.3 => draw.multiple(8, 200, 6000),
            _ => draw.multiple(128, 256, 8192),
        };
        let unit = draw.one(&[1, 64, 64]);
        let any = draw.multiple(unit, 2000, 160_000);
        let vocabulary = draw.one(&[50257, 32000, 128_256, any, any, any, any]);
        for (key, value) in [
            ("layers", layers),
            ("heads", heads),
            ("width", width),
            ("context", context),
            ("vocabulary", vocabulary),
        ] {
            self.set(&format!("model.{key}"), value);
        }
        let attended = head_width * (heads + key_value_heads);
        let mut block = 2.0 * (width * attended) as f64;
        let mut active = block;
        if is_gpt {
            block += 8.0 * (width * width) as f64;
            active = block;
            self.gpt(draw);
        } else {
            self.set("model.head_width", head_width);
            self.set("model.key_value_heads", key_value_heads);
            let [all, used] = self.feed_forward(draw, width);
            block += all;
            active += used;
            self.llama(draw, context);
        }
        if draw.chance(0.2) {
            self.set("model.dropout", draw.one(&[0.1, 0.2]));
        }
        if draw.chance(0.1) {
            self.set("model.loss_pieces", draw.one(&[2, 4, 8]));
        }
        let head = (vocabulary * width) as f64;
        self.parameters = layers as f64 * block + 2.0 * head;
        self.active = layers as f64 * active + head;
        self.attention = 2.0 * (layers * context * heads * head_width) as f64;
        self.micro_batch = (draw.spread(1024, 24_576) / context).max(1);
        self.tokens = self.micro_batch * context;
        self.techniques(draw);
    }

    fn gpt(&mut self, draw: &mut Draw) {
        if draw.chance(0.3) {
            self.set("model.tied", false);
        }
        if draw.chance(0.25) {
            self.set("model.biases", false);
        }
    }

    fn llama(&mut self, draw: &mut Draw, context: usize) {
        for (key, probability) in [("tied", 0.35), ("qk_norm", 0.3), ("qkv_bias", 0.15)] {
            if draw.chance(probability) {
                self.set(&format!("model.{key}"), true);
            }
        }
        if draw.chance(0.2) {
            self.set("model.activation", "gelu");
        }
        if draw.chance(0.15) {
            self.set("model.norm_position", "both");
        }
        if draw.chance(0.25) {
            let window = draw.spread(128, context.max(256));
            self.set("model.window", window);
            let full = draw.one(&[1, 3, 5]);
            let types = vec!["\"sliding_attention\""; full].join(",");
            self.set("model.layer_types", format!("[{types},\"full_attention\"]"));
        }
        if draw.chance(0.08) {
            self.set("model.logit_soft_cap", 30.0);
        }
    }

    /// Returns the parameters of a block's feed-forward layers: all, and the part that a token uses.
    fn feed_forward(&mut self, draw: &mut Draw, width: usize) -> [f64; 2] {
        let matrices = |inner: usize| 3.0 * (width * inner) as f64;
        if !draw.chance(0.18) {
            let inner = ((2.0 + 2.5 * draw.unit()) * width as f64) as usize;
            let inner = inner.next_multiple_of(draw.one(&[8, 32, 256]));
            self.set("model.feed_forward", inner);
            return [matrices(inner); 2];
        }
        let experts = draw.one(&[8, 16, 32, 64]);
        let each = draw.one(&[1, 2, 4, 6]);
        let inner = draw.multiple(16, 256, 2048);
        let shared = if draw.chance(0.4) { draw.multiple(16, 256, 2048) } else { 0 };
        self.set("model.experts", experts);
        self.set("model.experts_per_token", each);
        self.set("model.expert_width", inner);
        self.set("model.shared_expert_width", shared);
        [
            matrices(inner) * experts as f64 + matrices(shared),
            matrices(inner) * each as f64 + matrices(shared),
        ]
    }

    fn techniques(&mut self, draw: &mut Draw) {
        let recompute =
            draw.one(&["none", "none", "none", "none", "none", "none", "block", "block", "2", "4"]);
        if recompute != "none" {
            self.set("memory.recompute", recompute);
            if draw.chance(0.15) {
                self.set("memory.offload", "activations");
            }
        }
        match draw.unit() {
            share if share < 0.04 => self.set("memory.offload_weights", true),
            share if share < 0.08 => self.set("optim.offload", true),
            _ => {}
        }
        if draw.chance(0.15) {
            self.set("lora.rank", draw.one(&[4, 8, 16, 32, 64]));
            self.set("lora.base", draw.one(&["compute", "compute", "nf4", "fp8", "int4"]));
            if draw.chance(0.2) {
                self.set("lora.dropout", 0.05);
            }
        }
    }

    fn optimizer(&mut self, draw: &mut Draw, is_transformer: bool) {
        let kind = match draw.unit() {
            share if share < 0.7 => "adamw",
            share if share < 0.8 => "lion",
            share if share < 0.88 || !is_transformer => "sgd",
            _ => "muon",
        };
        self.set("optim.kind", kind);
        if draw.chance(0.2) {
            self.set("optim.state", draw.one(&["8bit", "bf16"]));
        }
    }

    fn batch(&mut self, draw: &mut Draw, ranks: RandomRanks) {
        self.micro_batches = draw.one(&[1, 1, 1, 2, 4, 8]) * ranks.ranks;
        self.set("train.micro_batch_size", self.micro_batch);
        self.set("train.global_batch_size", self.micro_batch * self.micro_batches);
    }

    /// Divides the ranks over the axes.
    fn grid(&mut self, draw: &mut Draw, RandomRanks { ranks, share_gpu }: RandomRanks, is_transformer: bool) {
        let mut lanes = 1;
        let mut left = ranks;
        let mut sizes = [1_usize; 4];
        while left > 1 {
            // Data-parallel ranks are the most common.
            let axis = if is_transformer { draw.one(&[0, 0, 0, 1, 2, 3]) } else { 0 };
            let prime = (2..=left).find(|divisor| left.is_multiple_of(*divisor)).unwrap_or(left);
            sizes[axis] *= prime;
            left /= prime;
        }
        let [data, tensor, context, pipeline] = sizes;
        for (key, size) in [("data", data), ("tensor", tensor), ("context", context), ("pipeline", pipeline)]
        {
            self.set(&format!("parallel.{key}"), size);
        }
        if data > 1 {
            self.set("parallel.zero_stage", draw.one(&[0, 0, 1, 2, 3, 3]));
            lanes = data;
        } else if self.micro_batches.is_multiple_of(2) && draw.chance(0.3) {
            lanes = 2;
        }
        if pipeline > 1 {
            let schedules = ["1f1b", "gpipe", "interleaved", "zero-bubble"];
            self.set("parallel.schedule", draw.one(&schedules));
        }
        self.set("parallel.lanes", lanes);
        if share_gpu && ranks > 1 {
            self.set("parallel.ranks_per_device", ranks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_configurations_of_all_kinds() {
        vision::register().unwrap();
        let drawn = |seed, ranks, share_gpu| -> Vec<_> {
            random_configs(seed, RandomRanks { ranks, share_gpu }).take(80).map(|case| case.sets).collect()
        };
        let first = drawn(1, 1, false);
        assert_eq!(first, drawn(1, 1, false));
        assert_ne!(first, drawn(2, 1, false));
        let all = first.concat();
        for word in [
            "=gpt",
            "=llama",
            "=resnet",
            "=f16",
            "fp8",
            "tf32",
            "lora",
            "experts",
            "dropout",
            "window",
            "recompute",
            "muon",
            "8bit",
            "offload",
        ] {
            assert!(all.iter().any(|set| set.contains(word)), "{word}");
        }
        let grids = drawn(1, 2, false).concat();
        for word in ["data=2", "tensor=2", "context=2", "pipeline=2", "zero_stage=3"] {
            assert!(grids.iter().any(|set| set.contains(word)), "{word}");
        }
        assert!(drawn(1, 4, true).concat().contains(&"parallel.ranks_per_device=4".to_owned()));
    }
}
