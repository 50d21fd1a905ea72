//! Conversion between element types.

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, DType, Family, Float, Function, dispatch};

use super::elementwise::{self, Each};
use super::kernels::family;
use super::{check, rows};
use crate::{Result, Tensor, TensorError};

pub(super) static FAMILY: Family =
    family!("cast", headers: ["elementwise.cuh"], constants: elementwise::CONSTANTS);

/// Converts `source` to the type of `target`, rounded to nearest with ties to even: from f32 to a half type,
/// or from a half type to f32 (exact). Both have one shape.
///
/// # Errors
/// Other types, shapes that do not agree.
pub fn into(source: &Tensor, target: &Tensor) -> Result<()> {
    const OPERATOR: &str = "cast.into";
    let from = check::computed(OPERATOR, &[("source", source)])?;
    let to = target.dtype();
    let supported = if from == DType::F32 { &check::DTYPES[1..] } else { &[DType::F32] };
    if !supported.contains(&to) {
        return Err(TensorError::Unsupported {
            operator: OPERATOR,
            operand: "target",
            actual: to,
            supported,
        });
    }
    check::shape(OPERATOR, "target", target, source.shape())?;
    match target.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => on_host(OPERATOR, source, target),
        Backend::Cuda => {
            let kernel = Function::new(&FAMILY, "cast").from_to(from, to);
            Each { kernel, read: &[source], write: target, updates: false, number: None }.launch()
        }
    }
}

/// Rounds f32, or widens a half type.
fn on_host(operator: &'static str, source: &Tensor, target: &Tensor) -> Result<()> {
    if source.dtype() == DType::F32 {
        let wide = source.read::<f32>()?;
        dispatch!(
            target.dtype(),
            T => in_pieces(&wide, &mut target.write::<T>()?, Float::round),
            _ => return Err(check::unsupported(operator, "target", target)),
        );
    } else {
        let mut wide = target.write::<f32>()?;
        dispatch!(
            source.dtype(),
            T => in_pieces(&source.read::<T>()?, &mut wide, Float::widen),
            _ => return Err(check::unsupported(operator, "source", source)),
        );
    }
    Ok(())
}

fn in_pieces<From: Float, To: Float>(from: &[From], to: &mut [To], convert: fn(&[From], &mut [To])) {
    for_pieces(to, CHUNK, |index, to| convert(rows::piece(from, index, CHUNK), to));
}
