//! `plimsoll export`.

use std::path::PathBuf;

use device::DType;

use crate::error::CliError;
use crate::output::print;
use crate::step::Step;
use inference::ExportOptions;
use telemetry::units::parse_bytes;

/// Write a model as a folder that Hugging Face's transformers can load
///
/// The folder contains config.json and model.safetensors, or several files and an index. If the model came
/// from such a folder, its configuration and tokenizer are included, and an untrained model is exported
/// byte-identical. A run's tokenizer, even a built-in one, is included with its chat template.
#[derive(clap::Args, Debug)]
pub(crate) struct ExportArgs {
    /// A run, a checkpoint, a Hugging Face folder, or a folder of adapters in PEFT's format.
    model: PathBuf,
    /// Folder of the model to which adapters belong [default: the one named in their adapter_config.json].
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// Folder to write; it must not exist.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Merge adapters, from a run with [lora] or from a folder, into their model. Without this option they
    /// are written alone, in PEFT's format, with the tokenizer and its chat template.
    #[arg(long)]
    merge: bool,
    /// Dtype of the written tensors: f32 or bf16 [default: as in the folder that the model came from, else
    /// f32].
    #[arg(long, value_name = "TYPE", value_parser = ["f32", "bf16"])]
    dtype: Option<String>,
    /// Maximum bytes of tensors in one file, as in 500MB. A larger model is split into several files with an
    /// index [default: 5GB].
    #[arg(long, value_name = "SIZE", value_parser = shard_size)]
    max_shard_size: Option<u64>,
    /// Step of the run's checkpoint, or "best" for the one kept by checkpoint.keep_best [default: the
    /// newest].
    #[arg(long, value_name = "N")]
    step: Option<Step>,
    /// Export the average of the weights that train.ema keeps, instead of the weights.
    #[arg(long)]
    ema: bool,
    /// Leave out modules that predict later tokens. Without this option, trained modules are written, and
    /// others are copied from the folder that the model came from.
    #[arg(long)]
    without_mtp: bool,
}

fn shard_size(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text).filter(|bytes| *bytes > 0);
    size.ok_or_else(|| format!("{text:?} is no size such as 500MB, 5GB or 2GiB"))
}

/// Runs the command: writes the folder and prints its path.
pub(crate) fn run(args: &ExportArgs) -> Result<(), CliError> {
    let dtype = args.dtype.as_deref().map(|name| if name == "bf16" { DType::Bf16 } else { DType::F32 });
    inference::export(&ExportOptions {
        model: args.model.clone(),
        base: args.base.clone(),
        step: args.step.map(|step| step.number(&args.model)).transpose()?,
        average: args.ema,
        output: args.output.clone(),
        without_mtp: args.without_mtp,
        merge: args.merge,
        dtype,
        most_bytes: args.max_shard_size,
    })?;
    print(&args.output.display().to_string())
}
