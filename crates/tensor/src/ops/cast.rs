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
        Backend::Cpu => dispatch!(
            from,
            From => from_host::<From>(OPERATOR, source, target),
            _ => Err(check::unsupported(OPERATOR, "source", source)),
        ),
        Backend::Cuda => {
            let kernel = Function::new(&FAMILY, "cast").from_to(from, to);
            Each { kernel, read: &[source], write: target, updates: false, number: None }.launch()
        }
    }
}

fn from_host<From: Float>(operator: &'static str, source: &Tensor, target: &Tensor) -> Result<()> {
    dispatch!(
        target.dtype(),
        To => convert::<From, To>(&source.read()?, &mut target.write()?),
        _ => return Err(check::unsupported(operator, "target", target)),
    );
    Ok(())
}

fn convert<From: Float, To: Float>(from: &[From], to: &mut [To]) {
    for_pieces(to, CHUNK, |index, to| {
        for (to, from) in to.iter_mut().zip(rows::piece(from, index, CHUNK)) {
            *to = To::from_f32(from.to_f32());
        }
    });
}
