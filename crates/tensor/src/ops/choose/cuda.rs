//! Launches of `kernels/choose.cu`.

use device::{Category, DType, Family, Function, Request};

use super::choice::Choice;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Threads of a block that computes a row.
const ROW_THREADS: u32 = 1024;
/// Tokens of a slice of a row. One block of [`gpu::THREADS`] computes a slice.
const SLICE: usize = 2048;
const WARP: u32 = 32;

pub(crate) static FAMILY: Family = family!(
    "choose",
    headers: ["early.cuh", "philox.cuh"],
    constants: &[gpu::THREADS_CONSTANT, ("ROW_THREADS", ROW_THREADS), ("SLICE", SLICE as u32)],
);

/// Allocates the results of all slices of `count` rows.
pub(super) fn results(operator: &'static str, logits: &Tensor, count: usize) -> Result<Tensor> {
    let slices = logits.shape().columns().div_ceil(SLICE);
    let request = Request::new(Category::Workspace, operator);
    // Two words each.
    Tensor::empty(logits.device(), [count, slices, 2], DType::U32, request)
}

pub(super) fn forward(
    operator: &'static str,
    logits: &Tensor,
    draws: &Tensor,
    seen: Option<(&Tensor, &Tensor)>,
    choice: Choice,
    results: Option<&Tensor>,
    chosen: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let count = chosen.elements();
    let rows = logits.shape().rows();
    let vocabulary = logits.shape().columns();
    let Choice { temperature, top_k, top_p, repetition_penalty } = choice;
    let scale = if temperature > 0.0 { 1.0 / temperature } else { 0.0 };
    let bytes = (count * vocabulary * logits.dtype().bytes()) as u64;
    let kernel = |name| {
        let launch = logits.device().kernel(Function::new(&FAMILY, name).with_dtype(logits.dtype()));
        let (tokens, seen) = seen.unzip();
        launch.read(logits).read(draws).cost(bytes, 0).read(tokens).write(seen)
    };
    let Some(results) = results else {
        let launch = kernel("choose").write(chosen).u32(word(rows)?).u32(word(vocabulary)?);
        let launch = launch.f32(scale).u32(top_k).f32(top_p).f32(repetition_penalty);
        return Ok(launch.launch([word(count)?, 1, 1], ROW_THREADS)?);
    };
    let slices = results.shape().dims()[1];
    let launch = kernel("slices").write(results).u32(word(rows)?).u32(word(vocabulary)?);
    let launch = launch.f32(scale).f32(repetition_penalty);
    launch.early().launch([word(slices)?, word(count)?, 1], gpu::THREADS)?;
    let join = logits.device().kernel(Function::new(&FAMILY, "join")).read(results);
    let join = join.write(chosen).u32(word(slices)?).cost(results.bytes() as u64, 0);
    Ok(join.early().launch([word(count)?, 1, 1], WARP)?)
}
