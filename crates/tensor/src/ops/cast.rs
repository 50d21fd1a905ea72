//! Values in another type.

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, DType};
use half::bf16;

use super::elementwise::Each;
use super::{check, rows};
use crate::{Result, Tensor, TensorError};

/// target = source, rounded to the nearest value of the target's type, ties to even: f32 to bf16, or bf16 to f32 (which
/// is exact). Of one shape. Errors: other types, shapes that do not agree.
pub fn into(source: &Tensor, target: &Tensor) -> Result<()> {
    const OPERATOR: &str = "cast.into";
    let expected = match source.dtype() {
        DType::F32 => DType::Bf16,
        DType::Bf16 => DType::F32,
        found => {
            return Err(TensorError::DType {
                operator: OPERATOR,
                operand: "source",
                found,
                expected: DType::F32,
            });
        }
    };
    check::dtype(OPERATOR, "target", target, expected)?;
    check::shape(OPERATOR, "target", target, source.shape())?;
    match target.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => on_host(source, target),
        Backend::Cuda => {
            let names = ["cast_to_f32", "cast_to_bf16"];
            Each { names, read: &[source], write: target, updates: false, number: None }.launch()
        }
    }
}

fn on_host(source: &Tensor, target: &Tensor) -> Result<()> {
    if target.dtype() == DType::Bf16 {
        convert(&source.read()?, &mut target.write()?, bf16::from_f32);
    } else {
        convert(&source.read()?, &mut target.write()?, bf16::to_f32);
    }
    Ok(())
}

fn convert<From: Copy + Sync, To: Send>(from: &[From], to: &mut [To], convert: impl Fn(From) -> To + Sync) {
    for_pieces(to, CHUNK, |index, to| {
        for (to, from) in to.iter_mut().zip(rows::piece(from, index, CHUNK)) {
            *to = convert(*from);
        }
    });
}
