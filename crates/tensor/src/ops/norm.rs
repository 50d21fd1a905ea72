//! The Euclidean norm of many tensors and the factor that clips it, in two steps.
//!
//! [`measure`] does both for all tensors of a rank. First [`chunk_sums`] computes Σx² of every [`CHUNK`]
//! elements of a tensor; then [`finish`] adds the sums in order. A shard that begins on a chunk has the same
//! sums as the whole tensor, so the norm does not depend on how tensors are distributed over ranks.

use device::parallel::{for_pieces, simd};
use device::{Backend, DType, Family, Function, dispatch};

use super::kernels::family;
use super::math::sum2_f64;
use super::table::{Table, halves};
use super::{StepState, check, gpu, rows};
use crate::{Result, Tensor};

/// Elements per partial sum. Shards of a tensor are cut at multiples of it.
pub const CHUNK: usize = 4096;
/// Partial sums per task.
const SUMS_PER_TASK: usize = 16;
/// Partial sums per block: one per warp.
const SUMS_PER_BLOCK: u32 = gpu::THREADS / 32;

/// Bounds of a gradient norm; 0 disables a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NormBounds {
    /// Norm to which the gradient is clipped.
    pub clip: f32,
    /// Norm above which the update is skipped.
    pub skip: f32,
}

impl From<f32> for NormBounds {
    fn from(clip: f32) -> Self {
        NormBounds { clip, skip: 0.0 }
    }
}

pub(super) static FAMILY: Family = family!(
    "norm",
    headers: ["step_state.cuh", "table.cuh"],
    constants: &[gpu::THREADS_CONSTANT, ("CHUNK", CHUNK as u32)],
);

/// Returns the number of partial sums of `elements` elements.
pub const fn chunks(elements: usize) -> usize {
    elements.div_ceil(CHUNK)
}

/// Computes sums\[i\] = Σ of the squares of the elements of chunk i of `x`, added in f64 and rounded once.
/// `x` is f32 or bf16 of any shape, `sums` f32 with [`chunks`]`(x.elements())` elements.
pub fn chunk_sums(x: &Tensor, sums: &Tensor) -> Result<()> {
    const OPERATOR: &str = "norm.chunk_sums";
    check::computed(OPERATOR, &[("x", x)])?;
    check::f32s(OPERATOR, &[("sums", sums)])?;
    if sums.elements() != chunks(x.elements()) {
        return Err(check::wrong(OPERATOR, "sums", sums, format!("{} elements", chunks(x.elements()))));
    }
    match x.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            dispatch!(
                x.dtype(),
                T => sums_on_host::<T>(&x.read()?, &mut sums.write()?),
                _ => return Err(check::unsupported(OPERATOR, "x", x)),
            );
            Ok(())
        }
        Backend::Cuda => {
            let count = gpu::word(OPERATOR, sums.elements())?;
            let kernel = Function::new(&FAMILY, "chunk_sums").with_dtype(x.dtype());
            let launch = x.device().kernel(kernel).read(x).write(sums).u64(x.elements() as u64).u32(count);
            let launch = launch.cost(x.bytes() as u64, 2 * x.elements() as u64);
            Ok(launch.launch([count.div_ceil(SUMS_PER_BLOCK), 1, 1], gpu::THREADS)?)
        }
    }
}

fn sums_on_host<T: Copy + Into<f64> + Sync>(x: &[T], sums: &mut [f32]) {
    for_pieces(sums, SUMS_PER_TASK, |index, sums| {
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
}

/// Computes the norm and clipping factor of `state` from `sums`. The norm is √(Σ sums) times the gradient
/// scale, added in f64 in an order that depends only on the number of sums. The factor is min(1, max_norm /
/// (norm + 1e-6)), as PyTorch's `clip_grad_norm_`, or 1 if `bounds.clip` is 0. A NaN norm gives a NaN factor.
/// With `bounds.skip`, also sets the skip flag if the norm exceeds it.
pub fn finish(sums: &Tensor, bounds: impl Into<NormBounds>, state: &StepState) -> Result<()> {
    const OPERATOR: &str = "norm.finish";
    let bounds = bounds.into();
    check::f32s(OPERATOR, &[("sums", sums)])?;
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => finish_on_host(sums, bounds, state),
        Backend::Cuda => {
            let count = gpu::word(OPERATOR, sums.elements())?;
            let launch = sums.device().kernel(Function::new(&FAMILY, "finish")).read(sums);
            let launch = launch.write(state.region()).u32(count).f32(bounds.clip).f32(bounds.skip);
            Ok(launch.cost(sums.bytes() as u64, u64::from(count)).launch([1, 1, 1], gpu::THREADS)?)
        }
    }
}

fn finish_on_host(sums: &Tensor, bounds: NormBounds, state: &StepState) -> Result<()> {
    let total: f64 = sums.values()?.iter().map(|sum| f64::from(*sum)).sum();
    let scale = f64::from(state.read()?.gradient_scale());
    let norm = total.sqrt() * scale;
    let factor = if bounds.clip == 0.0 { 1.0 } else { f64::from(bounds.clip) / (norm + 1e-6) };
    if bounds.skip != 0.0 {
        state.set_skip(norm as f32 > bounds.skip)?;
    }
    state.set_norm(norm as f32, if factor >= 1.0 { 1.0 } else { factor as f32 })
}

/// Computes norms\[g\] = √(Σ of the `sums` whose element of `groups` is g) times the gradient scale.
/// The sums of a group are added in f64, in an order that depends only on the number of all sums and on
/// `groups`. `sums` are f32, `groups` as many u32, and `norms` f32 with an element for each group.
///
/// # Errors
/// Types or numbers of elements that do not agree.
pub fn group_norms(sums: &Tensor, groups: &Tensor, norms: &Tensor, state: &StepState) -> Result<()> {
    const OPERATOR: &str = "norm.group_norms";
    check::f32s(OPERATOR, &[("sums", sums), ("norms", norms)])?;
    check::dtype(OPERATOR, "groups", groups, DType::U32)?;
    check::elements(OPERATOR, "groups", groups, sums.elements())?;
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => group_norms_on_host(sums, groups, norms, state),
        Backend::Cuda => {
            let count = gpu::word(OPERATOR, sums.elements())?;
            let blocks = gpu::word(OPERATOR, norms.elements())?;
            let kernel = Function::new(&FAMILY, "group_norms");
            let launch = sums.device().kernel(kernel).read(sums).read(groups).read(state.region());
            let launch = launch.write(norms).u32(count);
            let cost = (sums.bytes() + groups.bytes()) as u64;
            Ok(launch
                .cost(cost, u64::from(count) * u64::from(blocks))
                .launch([blocks, 1, 1], gpu::THREADS)?)
        }
    }
}

fn group_norms_on_host(sums: &Tensor, groups: &Tensor, norms: &Tensor, state: &StepState) -> Result<()> {
    let scale = f64::from(state.read()?.gradient_scale());
    let mut totals = vec![0.0; norms.elements()];
    for (sum, group) in sums.values()?.iter().zip(groups.read::<u32>()?.iter()) {
        if let Some(total) = totals.get_mut(*group as usize) {
            *total += f64::from(*sum);
        }
    }
    let norm = |total: &f64| (total.sqrt() * scale) as f32;
    norms.set(&totals.iter().map(norm).collect::<Vec<_>>())
}

/// Computes [`chunk_sums`] of all `gradients`, of one type, consecutively into `sums`, then [`finish`]; on a
/// GPU in one launch. `table` must be made for that many gradients.
pub fn measure(
    table: &Table,
    gradients: &[Tensor],
    sums: &Tensor,
    bounds: impl Into<NormBounds>,
    state: &StepState,
) -> Result<()> {
    const OPERATOR: &str = "norm.measure";
    let bounds = bounds.into();
    table.check(OPERATOR, gradients.len())?;
    check::f32s(OPERATOR, &[("sums", sums)])?;
    check::gradients(OPERATOR, gradients.iter())?;
    let mut firsts = Vec::with_capacity(gradients.len());
    let mut total = 0;
    for gradient in gradients {
        firsts.push(total);
        total += chunks(gradient.elements());
    }
    check::elements(OPERATOR, "sums", sums, total)?;
    if sums.device().backend() == Backend::Cuda {
        return measure_on_gpu(OPERATOR, table, gradients, sums, bounds, state);
    }
    for (gradient, first) in gradients.iter().zip(firsts) {
        chunk_sums(gradient, &sums.view(first, [chunks(gradient.elements())])?)?;
    }
    finish(sums, bounds, state)
}

/// Computes [`chunk_sums`] of `parts` of one type, each a shard of a longer tensor that begins on a chunk.
/// The sums of shard i are stored in `sums` from `offsets[i]` on; all other sums become 0. On a GPU this is
/// one launch. `table` must be made by [`Table::of_parts`] for that many shards.
///
/// # Errors
/// Shapes, types or counts that do not agree, an offset outside `sums`.
pub fn part_sums(table: &Table, parts: &[Tensor], offsets: &[usize], sums: &Tensor) -> Result<()> {
    const OPERATOR: &str = "norm.part_sums";
    table.check(OPERATOR, parts.len())?;
    table.check(OPERATOR, offsets.len())?;
    check::f32s(OPERATOR, &[("sums", sums)])?;
    check::gradients(OPERATOR, parts.iter())?;
    let mut targets = Vec::with_capacity(parts.len());
    for (part, offset) in parts.iter().zip(offsets) {
        targets.push(sums.view(*offset, [chunks(part.elements())])?);
    }
    sums.zero()?;
    if sums.device().backend() == Backend::Cuda {
        return part_sums_on_gpu(OPERATOR, table, parts, offsets, sums);
    }
    parts.iter().zip(&targets).try_for_each(|(part, target)| chunk_sums(part, target))
}

fn part_sums_on_gpu(
    operator: &'static str,
    table: &Table,
    parts: &[Tensor],
    offsets: &[usize],
    sums: &Tensor,
) -> Result<()> {
    let (mut words, total) = listed(operator, parts)?;
    if total == 0 {
        return Ok(());
    }
    for offset in offsets {
        words.push(gpu::word(operator, *offset)?);
    }
    let dtype = check::gradients(operator, parts.iter())?;
    let kernel = Function::new(&FAMILY, "part_sums").with_dtype(dtype);
    let launch = sums.device().kernel(kernel).read(table.holding(words)?.region()).write(sums);
    let launch = launch.u32(gpu::word(operator, parts.len())?).u32(total);
    let elements: u64 = parts.iter().map(|part| part.elements() as u64).sum();
    let launch = launch.cost(dtype.bytes() as u64 * elements, 2 * elements);
    Ok(launch.launch([total.div_ceil(SUMS_PER_BLOCK), 1, 1], gpu::THREADS)?)
}

/// Returns the words of a kernel's table (addresses and sizes of the tensors, the first chunk of each, the
/// number of chunks), and the number of chunks.
fn listed(operator: &'static str, tensors: &[Tensor]) -> Result<(Vec<u32>, u32)> {
    let entry = |tensor: &Tensor| [halves(gpu::address(tensor)), halves(tensor.elements() as u64)];
    let mut words: Vec<u32> = tensors.iter().flat_map(entry).flatten().collect();
    let mut total = 0;
    for tensor in tensors {
        words.push(gpu::word(operator, total)?);
        total += chunks(tensor.elements());
    }
    let total = gpu::word(operator, total)?;
    words.push(total);
    Ok((words, total))
}

fn measure_on_gpu(
    operator: &'static str,
    table: &Table,
    gradients: &[Tensor],
    sums: &Tensor,
    bounds: NormBounds,
    state: &StepState,
) -> Result<()> {
    let (mut words, chunks) = listed(operator, gradients)?;
    if chunks == 0 {
        return finish(sums, bounds, state);
    }
    // The counter of finished blocks, which every launch resets to 0.
    words.push(0);
    let dtype = check::gradients(operator, gradients.iter())?;
    let kernel = Function::new(&FAMILY, "measure").with_dtype(dtype);
    let launch = sums.device().kernel(kernel).write(table.holding(words)?.region());
    let launch = launch.write(sums).write(state.region());
    let launch = launch.u32(gpu::word(operator, gradients.len())?).u32(chunks);
    let launch = launch.f32(bounds.clip).f32(bounds.skip);
    let elements: u64 = gradients.iter().map(|gradient| gradient.elements() as u64).sum();
    let launch = launch.cost(dtype.bytes() as u64 * elements, 2 * elements);
    Ok(launch.launch([chunks.div_ceil(SUMS_PER_BLOCK), 1, 1], gpu::THREADS)?)
}
