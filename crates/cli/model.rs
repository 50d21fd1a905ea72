//! Arguments of commands that use a trained model.

use std::path::PathBuf;

use config::Data;
use telemetry::log::Log;
use worker::DeviceChoice;

use crate::arguments::count;
use crate::error::CliError;
use crate::step::Step;

/// A model, and the ranks and devices to use.
#[derive(clap::Args, Debug)]
pub(crate) struct ModelArgs {
    /// A run, a checkpoint, a Hugging Face folder, or a folder of adapters in PEFT's format.
    pub(crate) model: PathBuf,
    /// Step of the run's checkpoint, or "best" for the one kept by checkpoint.keep_best [default: the
    /// newest].
    #[arg(long, value_name = "N")]
    step: Option<Step>,
    /// Use the average of the weights that train.ema keeps, instead of the weights.
    #[arg(long)]
    pub(crate) ema: bool,
    /// Folder of the model to which adapters belong [default: the one named in their adapter_config.json].
    #[arg(long, value_name = "DIR")]
    pub(crate) base: Option<PathBuf>,
    /// Override a key of the model's configuration, as in --set parallel.pipeline=2; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Number of ranks, as threads of this process; must equal the configured number, which is the default.
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    pub(crate) ranks: Option<usize>,
    /// Device to compute on: cpu, cuda, or auto.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
}

/// Returns the settings of `--skip-invalid`, if it is set.
pub(crate) fn skips_invalid(is_set: bool) -> Vec<String> {
    is_set.then(|| format!("{}=true", Data::skip_invalid)).into_iter().collect()
}

impl ModelArgs {
    /// Returns the requested step of the run's checkpoints.
    ///
    /// # Errors
    /// The run has no best checkpoint.
    pub(crate) fn step(&self) -> Result<Option<u64>, CliError> {
        self.step.map(|step| step.number(&self.model)).transpose()
    }

    /// Returns the device, and starts logging.
    ///
    /// # Errors
    /// The device is unknown, or is Meta, which is refused with the reason `of_meta`.
    pub(crate) fn device(&self, of_meta: &str) -> Result<DeviceChoice, CliError> {
        let device = DeviceChoice::from_name(&self.device)?;
        if device == DeviceChoice::Meta {
            return Err(CliError::Refused(format!("--device meta {of_meta}")));
        }
        Log::new().install()?;
        Ok(device)
    }
}
