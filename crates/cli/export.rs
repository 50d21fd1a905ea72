//! `plimsoll export`.

use std::path::PathBuf;

use device::DType;

use crate::error::CliError;
use crate::output::print;
use run::ExportOptions;

/// Write a model as a folder that Hugging Face's transformers load
///
/// The folder has model.safetensors and config.json. If the model came from such a folder, its configuration
/// and tokenizer go with it, and an untrained model is byte-identical.
#[derive(clap::Args, Debug)]
pub(crate) struct ExportArgs {
    /// A run, a checkpoint, or a folder of Hugging Face.
    model: PathBuf,
    /// The folder to write, which must not exist.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Type of the written elements: f32 or bf16 [default: that of the folder which the model came from, or
    /// else f32].
    #[arg(long, value_name = "TYPE", value_parser = ["f32", "bf16"])]
    dtype: Option<String>,
    /// The step of the run's checkpoint [default: the newest].
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

/// Writes the folder and prints its path.
pub(crate) fn run(args: &ExportArgs) -> Result<(), CliError> {
    let dtype = args.dtype.as_deref().map(|name| if name == "bf16" { DType::Bf16 } else { DType::F32 });
    run::export(&ExportOptions {
        model: args.model.clone(),
        step: args.step,
        output: args.output.clone(),
        dtype,
    })?;
    print(&args.output.display().to_string())
}
