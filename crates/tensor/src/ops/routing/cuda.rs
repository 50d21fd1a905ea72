//! Launches of `kernels/routing.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::routes::Routes;
use super::settings::{Balancing, Routing, ScoreFunction, TokenRows};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Threads of a warp. Each warp computes one row.
const WARP: u32 = 32;
const ROWS: u32 = gpu::THREADS / WARP;

pub(crate) static FAMILY: Family = family!("routing", constants: &[gpu::THREADS_CONSTANT]);

/// Returns the bytes of the counts that sort the choices: one u32 per expert and block of choices.
pub(super) fn workspace_bytes(choices: usize, experts: usize) -> usize {
    choices.div_ceil(gpu::THREADS as usize) * experts * size_of::<u32>()
}

pub(super) fn forward(
    operator: &'static str,
    (logits, correction): (&Tensor, Option<&Tensor>),
    routing: &Routing,
    (loads, counts, tokens): (Option<&Tensor>, &Tensor, Option<&TokenRows>),
    routes: &Routes,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [rows, experts, chosen] = [word(routes.rows())?, word(routing.experts)?, word(routing.per_token)?];
    let [groups, open] = [word(routing.groups)?, word(routing.groups_per_token)?];
    let device = logits.device();
    let total = word(routes.choices.elements())?;
    if total == 0 {
        return Ok(());
    }
    let kernel = |name| device.kernel(Function::new(&FAMILY, name));
    let launch = kernel("choose").read(logits).read(correction).write(&routes.weights).write(&routes.choices);
    let launch = launch.u32(rows).u32(experts).u32(chosen);
    let launch = of_scores(launch, routing).u32(groups).u32(open);
    let launch = launch.cost(logits.bytes() as u64, u64::from(chosen) * logits.elements() as u64);
    launch.shared(ROWS * (2 * experts + groups) * 4).launch([rows.div_ceil(ROWS), 1, 1], gpu::THREADS)?;
    let blocks = total.div_ceil(gpu::THREADS);
    let launch = kernel("count").read(&routes.choices).write(counts);
    launch.u32(total).u32(experts).shared(4 * experts).launch([blocks, 1, 1], gpu::THREADS)?;
    let launch = kernel("offsets").write(counts).write(&routes.offsets);
    let launch = launch.write(&routes.counts).write(&routes.sources);
    let of_all = loads.filter(|_| tokens.is_none());
    let launch = launch.write(of_all).u32(blocks).u32(experts);
    let launch = launch.u32(word(routing.alignment)?).u32(word(routes.slots())?);
    // A thread adds an expert's counts of all blocks, one after another.
    let launch = launch.cost(2 * counts.bytes() as u64, u64::from(blocks));
    launch.shared(4 * experts).launch([1, 1, 1], gpu::THREADS)?;
    let launch = kernel("order").read(&routes.choices).read(counts);
    let launch = launch.read(&routes.offsets).write(&routes.slots);
    let launch = launch.write(&routes.sources).u32(total).u32(experts);
    launch.shared(4 * gpu::THREADS).launch([blocks, 1, 1], gpu::THREADS)?;
    let (Some(tokens), Some(counts)) = (tokens, &routes.token_counts) else { return Ok(()) };
    let launch = kernel("count_tokens").read(&routes.choices).read(&tokens.mask);
    let launch = launch.write(counts).write(loads).u32(rows).u32(experts).u32(chosen);
    Ok(launch.shared(4 * experts).launch([1, 1, 1], gpu::THREADS)?)
}

/// Adds the score function and the settings of weights to a launch.
fn of_scores<'a>(launch: Launch<'a>, routing: &Routing) -> Launch<'a> {
    let sigmoid = u32::from(routing.scores == ScoreFunction::Sigmoid);
    launch.u32(sigmoid).u32(u32::from(routing.normalised)).f32(routing.least_sum).f32(routing.scale)
}

pub(super) fn backward(
    operator: &'static str,
    (dw, logits): (&Tensor, &Tensor),
    routes: &Routes,
    (routing, balancing): (&Routing, Balancing<'_>),
    gradient: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [rows, experts, chosen] = [word(routes.rows())?, word(routing.experts)?, word(routing.per_token)?];
    if rows == 0 {
        return Ok(());
    }
    let Balancing { factors, loss_scale, tokens } = balancing;
    let of_rows = routes.rows() as f32;
    let of_choices = routes.choices.elements() as f32;
    let launch = logits.device().kernel(Function::new(&FAMILY, "logits_gradient"));
    let launch = launch.read(dw).read(logits).read(&routes.choices);
    let counts = routes.token_counts.as_ref().unwrap_or(&routes.counts);
    let launch = launch.read(counts).read(loss_scale).read(tokens.map(|tokens| &tokens.mask));
    let launch = launch.read(tokens.map(|tokens| &tokens.count)).write(gradient);
    let launch = of_scores(launch.u32(rows).u32(experts).u32(chosen), routing);
    // The numbers of tokens are on the device, which divides by them.
    let (of_rows, of_choices) = if tokens.is_some() { (1.0, 1.0) } else { (of_rows, of_choices) };
    let load = factors.load * routing.experts as f32 / of_rows / of_choices;
    let launch = launch.f32(load).f32(factors.logits * 2.0 / of_rows);
    let launch = launch.cost(2 * logits.bytes() as u64, 8 * logits.elements() as u64);
    Ok(launch.shared(ROWS * 2 * experts * 4).launch([rows.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

pub(super) fn sum_loads(operator: &'static str, counts: &Tensor, sums: &Tensor) -> Result<()> {
    let [ranks, width] = [counts.shape().rows(), counts.shape().columns()];
    let [ranks, width] = [gpu::word(operator, ranks)?, gpu::word(operator, width)?];
    let launch = counts.device().kernel(Function::new(&FAMILY, "sum_loads"));
    let launch = launch.read(counts).write(sums).u32(ranks).u32(width);
    Ok(launch.launch([width.div_ceil(gpu::THREADS), 1, 1], gpu::THREADS)?)
}

pub(super) fn move_correction(
    operator: &'static str,
    correction: &Tensor,
    loads: &Tensor,
    rate: f32,
) -> Result<()> {
    let launch = loads.device().kernel(Function::new(&FAMILY, "move_correction"));
    let launch = launch.write(correction).read(loads);
    Ok(launch.u32(gpu::word(operator, loads.elements())?).f32(rate).launch([1, 1, 1], WARP)?)
}
