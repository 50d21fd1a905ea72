//! Operand dtypes of benchmarks of single calls.

use device::{DType, Device};

use crate::error::CliError;

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
