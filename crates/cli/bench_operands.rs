//! Arguments of benchmarks of single calls, and the dtypes of operands.

use bench::measured_device;
use device::{DType, Device};
use worker::DeviceChoice;

use crate::arguments::count;
use crate::error::CliError;

/// Arguments of benchmarks of attention and of recurrent operators.
#[derive(Debug, clap::Args)]
pub(crate) struct CallArgs {
    /// Dtype of the operands: bf16, f16 or f32 [default: bf16 on a GPU, f32 otherwise]
    #[arg(long)]
    precision: Option<String>,
    /// Device: auto, cpu or cuda; on a CPU, use small sizes such as --batch 1 --positions 512 --heads 2
    #[arg(long, default_value = "auto")]
    device: String,
    /// Number of timed calls of each pass
    #[arg(long, value_name = "N", default_value = "20", value_parser = count::<usize>)]
    pub(crate) calls: usize,
    /// Print a line of JSON for each row instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Dtypes of the operands, by name.
const TYPES: &[(&str, DType)] = &[("bf16", DType::Bf16), ("f16", DType::F16), ("f32", DType::F32)];

impl CallArgs {
    /// Opens the device, and returns it with the operands' dtype.
    ///
    /// # Errors
    /// The device is missing, or an argument has no such name.
    pub(crate) fn device_and_type(&self) -> Result<(Device, DType), CliError> {
        let device = measured_device(DeviceChoice::from_name(&self.device)?)?;
        let dtype = operand_type(self.precision.as_deref(), TYPES, &device)?;
        Ok((device, dtype))
    }
}

/// Returns the dtype named by `--precision`, which must be in `types`; by default, bf16 on a GPU and f32 on a
/// CPU.
///
/// # Errors
/// The name is not in `types`.
pub(crate) fn operand_type(
    named: Option<&str>,
    types: &[(&str, DType)],
    device: &Device,
) -> Result<DType, CliError> {
    let Some(named) = named else {
        return Ok(if device.is_cuda_like() { DType::Bf16 } else { DType::F32 });
    };
    let found = types.iter().find(|(name, _)| *name == named).map(|(_, dtype)| *dtype);
    found.ok_or_else(|| {
        let names: Vec<_> = types.iter().map(|(name, _)| *name).collect();
        CliError::Refused(format!("--precision {named}: unknown type; the types are {}", names.join(", ")))
    })
}
