//! Models and arguments shared by the benchmarks of training steps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::arguments::{count, seconds};
use crate::error::CliError;
use bench::{BenchOptions, GPU_WARM_UP, measures_gpu};
use config::RunConfig;
use worker::DeviceChoice;

/// Arguments of every training-step benchmark.
#[derive(Debug, clap::Args)]
pub(crate) struct StepArgs {
    /// Number of sequences or images in a micro-batch [default: 64 for 124M, 32 for 355M, 16 for 1558M, 32
    /// for small, 4 for llama3-1b, gemma3-1b, qwen3-30b-a3b and qwen3.5-1b, 1 for llama3-8b, 64 for
    /// gpt-shakespeare, 256 for resnet50]
    #[arg(long, visible_alias = "batch", value_parser = count::<usize>)]
    pub(crate) micro_batch_size: Option<usize>,
    /// Compute dtype: f32 or bf16 [default: bf16 on a GPU, f32 otherwise]
    #[arg(long)]
    pub(crate) precision: Option<String>,
    /// Device: auto, cpu or cuda
    #[arg(long, default_value = "auto")]
    pub(crate) device: String,
    /// Number of timed steps
    #[arg(long, default_value_t = 20, value_parser = count::<u64>)]
    steps: u64,
    /// Minimum number of warm-up steps
    #[arg(long, default_value_t = 5)]
    warm_up: u64,
    /// Minimum seconds of warm-up steps [default: 5 on a GPU, whose clocks drop in the first seconds of work;
    /// 0 otherwise]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    warm_up_seconds: Option<Duration>,
    /// Override a key of the configuration, as in --set parallel.bucket_bytes=1048576 or, for low-rank
    /// adapters, --set lora.rank=16
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

impl StepArgs {
    /// Returns the device on which to measure several ranks, with `auto` resolved, and the number of GPUs of
    /// this host.
    ///
    /// # Errors
    /// The device is unknown.
    pub(crate) fn device_of_ranks(&self) -> Result<(DeviceChoice, usize), CliError> {
        let gpus = device::cuda::availability().map_or(0, |gpus| gpus.len());
        let device = match DeviceChoice::from_name(&self.device)? {
            DeviceChoice::Auto if gpus > 0 => DeviceChoice::Cuda,
            DeviceChoice::Auto => DeviceChoice::Cpu,
            named => named,
        };
        Ok((device, gpus))
    }

    /// Returns whether `--set` overrides `key`.
    pub(crate) fn sets(&self, key: &str) -> bool {
        let named = |set: &String| set.split('=').next().is_some_and(|name| name.trim() == key);
        self.overrides.iter().any(named)
    }

    /// Returns the options of a benchmark on `device`.
    pub(crate) fn options(&self, device: DeviceChoice) -> BenchOptions {
        let default = if measures_gpu(device) { GPU_WARM_UP } else { Duration::ZERO };
        BenchOptions {
            device,
            steps: self.steps,
            warm_up: self.warm_up.max(1),
            warm_up_time: self.warm_up_seconds.unwrap_or(default),
            profile: true,
            trace: None,
        }
    }
}

/// Argument of benchmarks that can record a timeline.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Record two more steps of each run as a timeline of phases and streams, in a file in DIR for
    /// ui.perfetto.dev
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
}

impl TraceArgs {
    /// Creates the directory, if requested.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn directory(&self) -> Result<Option<PathBuf>, CliError> {
        let Some(directory) = &self.trace else { return Ok(None) };
        let refused = |error| {
            CliError::Refused(format!(
                "--trace {}: cannot create the directory: {error}",
                directory.display()
            ))
        };
        std::fs::create_dir_all(directory).map_err(refused)?;
        Ok(Some(directory.clone()))
    }
}

/// A named model, trained on random tokens or generated images.
pub(crate) struct BenchModel {
    pub(crate) name: &'static str,
    /// Text of a configuration with the model's sizes.
    sizes: &'static str,
    /// Default number of sequences or images in a micro-batch.
    pub(crate) micro_batch_size: usize,
    /// Keys of `[optim]`.
    optim: &'static str,
}

/// AdamW with gradient clipping, as for training language models.
const ADAMW: &str = "clip_norm = 1.0";
/// SGD with momentum, as for training residual networks.
const SGD: &str = "kind = \"sgd\"\nlearning_rate = 0.1\nmomentum = 0.9\nweight_decay = 1e-4\nclip_norm = 0.0";

const MODELS: [BenchModel; 11] = [
    // Sizes that equal the keys' defaults.
    BenchModel { name: "small", sizes: "[data]\nkind = \"synthetic\"\n", micro_batch_size: 32, optim: ADAMW },
    BenchModel {
        name: "gpt2-124m",
        sizes: include_str!("../../launch/configs/gpt2-124m.toml"),
        micro_batch_size: 64,
        optim: ADAMW,
    },
    BenchModel {
        name: "gpt2-355m",
        sizes: include_str!("../../launch/configs/gpt2-355m.toml"),
        micro_batch_size: 32,
        optim: ADAMW,
    },
    BenchModel {
        name: "gpt2-1558m",
        sizes: include_str!("../../launch/configs/gpt2-1558m.toml"),
        micro_batch_size: 16,
        optim: ADAMW,
    },
    BenchModel {
        name: "llama3-1b",
        sizes: include_str!("../../launch/configs/llama3-1b.toml"),
        micro_batch_size: 4,
        optim: ADAMW,
    },
    BenchModel {
        name: "llama3-8b",
        sizes: include_str!("../../launch/configs/llama3-8b.toml"),
        micro_batch_size: 1,
        optim: ADAMW,
    },
    BenchModel {
        name: "gemma3-1b",
        sizes: include_str!("../../launch/configs/gemma3-1b.toml"),
        micro_batch_size: 4,
        optim: ADAMW,
    },
    BenchModel {
        name: "qwen3-30b-a3b",
        sizes: include_str!("../../launch/configs/qwen3-30b-a3b.toml"),
        micro_batch_size: 4,
        optim: ADAMW,
    },
    BenchModel {
        name: "qwen3.5-1b",
        sizes: include_str!("../../launch/configs/qwen3.5-1b.toml"),
        micro_batch_size: 4,
        optim: ADAMW,
    },
    BenchModel {
        name: "gpt-shakespeare",
        sizes: include_str!("../../launch/configs/gpt-shakespeare.toml"),
        micro_batch_size: 64,
        optim: ADAMW,
    },
    BenchModel {
        name: "resnet50",
        sizes: include_str!("../../launch/configs/resnet50.toml"),
        micro_batch_size: 256,
        optim: SGD,
    },
];

impl BenchModel {
    /// Returns the model called `name`.
    ///
    /// # Errors
    /// There is no such model.
    pub(crate) fn named(name: &str) -> Result<&'static Self, CliError> {
        MODELS.iter().find(|model| model.name == name).ok_or_else(|| {
            let names = MODELS.each_ref().map(|model| model.name).join(", ");
            CliError::Refused(format!("--model {name}: unknown model; the models are {names}"))
        })
    }

    /// Returns a configuration that trains the model on one rank. Further sections such as `[parallel]` may
    /// be appended.
    ///
    /// # Errors
    /// The file of sizes is not a configuration.
    pub(crate) fn configuration(
        &self,
        micro_batch_size: Option<usize>,
        micro_batches: usize,
        compute: &str,
    ) -> Result<String, CliError> {
        let sized = RunConfig::parse(self.sizes, self.name, Path::new("/"), &[])?;
        let micro_batch_size = micro_batch_size.unwrap_or(self.micro_batch_size);
        let global_batch = micro_batch_size * micro_batches;
        Ok(format!(
            "{}[data]\nkind = \"synthetic\"\n[train]\nsteps = 1000000\nmicro_batch_size = {micro_batch_size}\n\
             global_batch_size = {global_batch}\n[optim]\n{}\n[precision]\ncompute = \"{compute}\"\n",
            sized.section_toml("model"),
            self.optim
        ))
    }
}
