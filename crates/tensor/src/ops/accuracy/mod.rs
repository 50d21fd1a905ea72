//! Top-1 and top-5 accuracy of class scores.

mod counts;
mod cpu;
pub(crate) mod cuda;

pub use counts::{COUNTS, MOST};

use device::{Backend, Category, DType, Request, dispatch};

use super::check;
use crate::{Result, Tensor};

/// Counts how many rows of `scores [.., classes]` (f32 or a half type) have their target first or in the top
/// five. Returns u32 \[[`COUNTS`]\]: rows, top-1, top-5.
///
/// Of equal scores the lower class ranks higher; a NaN ranks above all numbers. `targets` are u32 with one or
/// more values a row, of which the first is the class. Rows of [`IGNORED`](super::cross_entropy::IGNORED) are
/// skipped.
pub fn count(scores: &Tensor, targets: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "accuracy.count";
    let dtype = check::computed(OPERATOR, &[("scores", scores)])?;
    check::dtype(OPERATOR, "targets", targets, DType::U32)?;
    check::not_empty(OPERATOR, "scores", scores)?;
    let rows = scores.shape().rows();
    let classes = scores.shape().columns();
    let each = targets.elements() / rows;
    if each == 0 || targets.elements() != each * rows {
        return Err(check::wrong(OPERATOR, "targets", targets, format!("a multiple of {rows} elements")));
    }
    let request = Request::new(Category::Activation, OPERATOR);
    let counts = Tensor::empty(scores.device(), [COUNTS], DType::U32, request)?;
    match scores.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let targets = targets.read::<u32>()?;
            let values = dispatch!(
                dtype,
                T => cpu::count::<T>(&scores.read::<T>()?, &targets, classes, each),
                _ => [0; COUNTS],
            );
            counts.set(&values)?;
        }
        Backend::Cuda => cuda::count(OPERATOR, scores, targets, each, &counts)?,
    }
    Ok(counts)
}
