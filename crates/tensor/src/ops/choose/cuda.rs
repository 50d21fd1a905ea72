//! Launches of `kernels/choose.cu`.

use device::{Family, Function};

use super::choice::Choice;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Threads of a block, which computes a row.
const ROW_THREADS: u32 = 1024;

/// `kernels/choose.cu`.
pub(crate) static FAMILY: Family =
    family!("choose", headers: ["philox.cuh"], constants: &[("ROW_THREADS", ROW_THREADS)]);

pub(super) fn forward(
    operator: &'static str,
    logits: &Tensor,
    draws: &Tensor,
    seen: Option<(&Tensor, &Tensor)>,
    choice: Choice,
    chosen: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let (count, rows, vocabulary) = (chosen.elements(), logits.shape().rows(), logits.shape().columns());
    let Choice { temperature, top_k, top_p, repetition_penalty } = choice;
    let launch = logits.device().kernel(Function::new(&FAMILY, "choose").of(logits.dtype()));
    let launch = launch.read(logits.region()).read(draws.region());
    let launch = match seen {
        Some((tokens, seen)) => launch.read(tokens.region()).write(seen.region()),
        None => launch.null().null(),
    };
    let scale = if temperature > 0.0 { 1.0 / temperature } else { 0.0 };
    let launch = launch.write(chosen.region()).u32(word(rows)?).u32(word(vocabulary)?);
    let launch = launch.f32(scale).u32(top_k).f32(top_p).f32(repetition_penalty);
    let bytes = count * vocabulary * logits.dtype().bytes();
    Ok(launch.cost(bytes as u64, 0).launch([word(count)?, 1, 1], ROW_THREADS)?)
}
