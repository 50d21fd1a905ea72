//! Types of the operands that a benchmark of single calls takes.

use device::{DType, Device};

use crate::error::CliError;

/// Returns the type that `--precision` names, one of `types`, or else bf16 on a GPU and f32 on a CPU.
///
/// # Errors
/// Another name.
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
