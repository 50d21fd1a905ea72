//! `plimsoll export`.

use std::path::PathBuf;

use device::DType;

use crate::error::CliError;
use crate::output::print;
use crate::step::Step;
use inference::ExportOptions;
use telemetry::units::parse_bytes;

/// Write a model as a folder that Hugging Face's transformers load
///
/// The folder has model.safetensors, or several files and their index, and config.json. If the model came
/// from such a folder, its configuration and tokenizer go with it, and an untrained model is byte-identical.
/// The tokenizer of a run goes with it too, also a built-in one, with its chat template.
#[derive(clap::Args, Debug)]
pub(crate) struct ExportArgs {
    /// A run, a checkpoint, a folder of Hugging Face, or one of adapters in PEFT's format.
    model: PathBuf,
    /// The folder of the model that adapters belong to [default: the one that their adapter_config.json
    /// names].
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// The folder to write, which must not exist.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Merge adapters, of a run with [lora] or of a folder, into their model. Without it they are written
    /// alone, as PEFT loads them, with the tokenizer and its chat template.
    #[arg(long)]
    merge: bool,
    /// Type of the written elements: f32 or bf16 [default: that of the folder which the model came from, or
    /// else f32].
    #[arg(long, value_name = "TYPE", value_parser = ["f32", "bf16"])]
    dtype: Option<String>,
    /// The most bytes of tensors in one file, as in 500MB; a larger model has several files and an index
    /// [default: 5GB].
    #[arg(long, value_name = "SIZE", value_parser = shard_size)]
    max_shard_size: Option<u64>,
    /// The step of the run's checkpoint, or "best", which checkpoint.keep_best keeps [default: the newest].
    #[arg(long, value_name = "N")]
    step: Option<Step>,
}

fn shard_size(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text).filter(|bytes| *bytes > 0);
    size.ok_or_else(|| format!("{text:?} is no size such as 500MB, 5GB or 2GiB"))
}

/// Writes the folder and prints its path.
pub(crate) fn run(args: &ExportArgs) -> Result<(), CliError> {
    let dtype = args.dtype.as_deref().map(|name| if name == "bf16" { DType::Bf16 } else { DType::F32 });
    inference::export(&ExportOptions {
        model: args.model.clone(),
        base: args.base.clone(),
        step: args.step.map(|step| step.number(&args.model)).transpose()?,
        output: args.output.clone(),
        merge: args.merge,
        dtype,
        most_bytes: args.max_shard_size,
    })?;
    print(&args.output.display().to_string())
}
