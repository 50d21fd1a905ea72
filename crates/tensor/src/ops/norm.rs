//! The Euclidean norm of many tensors and the factor that clips it, in two steps.
//!
//! First [`chunk_sums`] gives Σx² of every [`CHUNK`] elements counted from a tensor's start; then [`finish`]
//! adds such sums in order. Whoever owns a tensor, or a part of one that begins on a chunk, has the same sums,
//! so the norm does not depend on how tensors are spread over ranks.

use device::parallel::{for_pieces, simd};

use super::math::sum2_f64;
use super::{check, rows};
use crate::{Result, Tensor};

/// Elements of one partial sum; parts of a tensor may be cut at its multiples.
pub const CHUNK: usize = 4096;
/// Partial sums of one task.
const SUMS_PER_TASK: usize = 16;

/// How many partial sums `elements` elements have.
pub const fn chunks(elements: usize) -> usize {
    elements.div_ceil(CHUNK)
}

/// sums\[i\] = Σ of the squares of x's elements i·[`CHUNK`].. , added in f64 and rounded once. `x` is f32 of
/// any shape, `sums` f32 of exactly [`chunks`]`(x.elements())` elements. Errors: shapes or types that do not agree.
pub fn chunk_sums(x: &Tensor, sums: &Tensor) -> Result<()> {
    const OPERATOR: &str = "norm.chunk_sums";
    check::f32s(OPERATOR, &[("x", x), ("sums", sums)])?;
    if sums.elements() != chunks(x.elements()) {
        return Err(check::wrong(OPERATOR, "sums", sums, format!("{} elements", chunks(x.elements()))));
    }
    if x.device().is_meta() {
        return Ok(());
    }
    let x = x.read::<f32>()?;
    let x: &[f32] = &x;
    for_pieces(&mut sums.write::<f32>()?, SUMS_PER_TASK, |index, sums| {
        simd(
            #[inline(always)]
            || {
                let x = rows::piece(x, index, SUMS_PER_TASK * CHUNK);
                for (sum, x) in sums.iter_mut().zip(x.chunks(CHUNK)) {
                    *sum = sum2_f64(x, x, |a, b| a * b) as f32;
                }
            },
        );
    });
    Ok(())
}

/// out\[0\] = √(Σ sums), added in order in f64; out\[1\] = min(1, max_norm / (norm + 1e-6)), as PyTorch's
/// `clip_grad_norm_`, or 1 where `max_norm` is 0. `out` has two elements; a norm that is not a number gives a
/// factor that is none. Errors: shapes or types that do not agree.
pub fn finish(sums: &Tensor, max_norm: f32, out: &Tensor) -> Result<()> {
    const OPERATOR: &str = "norm.finish";
    check::f32s(OPERATOR, &[("sums", sums), ("out", out)])?;
    check::shape(OPERATOR, "out", out, [2])?;
    if out.device().is_meta() {
        return Ok(());
    }
    let total: f64 = sums.read::<f32>()?.iter().map(|sum| f64::from(*sum)).sum();
    let norm = total.sqrt();
    let factor = if max_norm == 0.0 { 1.0 } else { f64::from(max_norm) / (norm + 1e-6) };
    out.set(&[norm as f32, if factor >= 1.0 { 1.0 } else { factor as f32 }])
}
