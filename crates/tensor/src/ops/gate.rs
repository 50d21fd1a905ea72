//! The gate of a gated feed-forward layer (Shazeer, *GLU Variants Improve Transformer*, 2020): activation(g)
//! · u for rows that hold the columns of g, then those of u.
//!
//! The backward pass needs only those rows: it recomputes the output in the pass that computes their
//! gradients.

use device::cuda::Launch;
use device::parallel::{for_pieces, for_tasks, simd};
use device::{Backend, Category, Family, Function, Request};

use super::activation::{Activation, Elementary, with_function};
use super::kernels::family;
use super::{check, gpu, rows};
use crate::{Result, Tensor};

/// `kernels/gate.cu`.
pub(super) static FAMILY: Family = family!(
    "gate",
    headers: ["activation.cuh", "maximum.cuh"],
    constants: &[gpu::THREADS_CONSTANT, gpu::CELLS_CONSTANT],
);

/// Computes `activation(g) · u` of `pair [.., 2 · width]`, f32 or bf16, as `[.., width]`.
///
/// # Errors
/// Another type, an odd number of columns, out of memory.
pub fn forward(pair: &Tensor, activation: Activation) -> Result<Tensor> {
    const OPERATOR: &str = "gate.forward";
    let width = check_pair(OPERATOR, pair)?;
    let hidden = allocate(OPERATOR, pair, width, Category::Activation)?;
    match pair.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => forward_on_host(&pair.values()?, &mut hidden.values_mut()?, width, activation),
        Backend::Cuda => launch(OPERATOR, activation.name_of_kernel(), pair, &hidden, 3, |launch| launch)?,
    }
    Ok(hidden)
}

/// [`forward`] for recomputation, which allocates the output and leaves it uncomputed because nothing reads
/// it.
///
/// # Errors
/// As [`forward`].
pub fn forward_again(pair: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "gate.forward";
    let width = check_pair(OPERATOR, pair)?;
    allocate(OPERATOR, pair, width, Category::Activation)
}

/// Replaces `pair` by its gradient, and the output's gradient `hidden` by the output, which the next layer's
/// weight gradient reads.
///
/// # Errors
/// Shapes or types that do not agree.
pub fn backward(pair: &Tensor, hidden: &Tensor, activation: Activation) -> Result<()> {
    backward_measured(pair, hidden, activation, None)
}

/// [`backward`], and the largest magnitude of the gradients in `cells` on a GPU.
pub(super) fn backward_measured(
    pair: &Tensor,
    hidden: &Tensor,
    activation: Activation,
    cells: Option<&Tensor>,
) -> Result<()> {
    const OPERATOR: &str = "gate.backward";
    let width = check_pair(OPERATOR, pair)?;
    check::computed(OPERATOR, &[("pair", pair), ("hidden", hidden)])?;
    check::shape(OPERATOR, "hidden", hidden, check::with_columns(pair.shape(), width))?;
    match pair.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            backward_on_host(&mut pair.values_mut()?, &mut hidden.values_mut()?, width, activation);
            Ok(())
        }
        Backend::Cuda => {
            let kernel = activation.name_of_gradient();
            launch(OPERATOR, kernel, pair, hidden, 6, |launch| gpu::write_any(launch, cells))
        }
    }
}

fn check_pair(operator: &'static str, pair: &Tensor) -> Result<usize> {
    check::computed(operator, &[("pair", pair)])?;
    let columns = pair.shape().columns();
    if !columns.is_multiple_of(2) {
        return Err(check::wrong(operator, "pair", pair, "an even number of columns".to_owned()));
    }
    Ok(columns / 2)
}

fn allocate(operator: &'static str, pair: &Tensor, width: usize, category: Category) -> Result<Tensor> {
    let shape = check::with_columns(pair.shape(), width);
    Tensor::empty(pair.device(), shape, pair.dtype(), Request::new(category, operator))
}

/// Launches a kernel that moves `moved` times as many elements as `hidden` has, with `more` arguments.
fn launch<'a>(
    operator: &'static str,
    name: &'static str,
    pair: &'a Tensor,
    hidden: &Tensor,
    moved: u64,
    more: impl FnOnce(Launch<'a>) -> Launch<'a>,
) -> Result<()> {
    let (width, lanes) = (hidden.shape().columns(), gpu::lanes(hidden.dtype()));
    let vector = width.is_multiple_of(lanes) && gpu::aligned(&[pair, hidden]);
    let items = hidden.elements() / if vector { lanes } else { 1 };
    let kernel = Function::new(&FAMILY, name).of(hidden.dtype());
    let launch = pair.device().kernel(kernel).write(pair.region()).write(hidden.region());
    let launch = launch.u32(gpu::word(operator, items)?).u32(gpu::word(operator, width)?);
    let launch = more(launch.u32(u32::from(vector)));
    let launch = launch.cost(moved * hidden.bytes() as u64, 8 * hidden.elements() as u64);
    let blocks = items.div_ceil(gpu::THREADS as usize);
    Ok(launch.launch([gpu::word(operator, blocks)?, 1, 1], gpu::THREADS)?)
}

fn forward_on_host(pair: &[f32], hidden: &mut [f32], width: usize, activation: Activation) {
    let per_task = rows::per_task(width);
    for_pieces(hidden, per_task * width, |index, hidden| {
        let pair = rows::piece(pair, index, per_task * 2 * width);
        with_function!(activation, F => simd(|| {
            for (pair, hidden) in pair.chunks_exact(2 * width).zip(hidden.chunks_exact_mut(width)) {
                let (gate, up) = pair.split_at(width);
                for ((hidden, gate), up) in hidden.iter_mut().zip(gate).zip(up) {
                    *hidden = F::value(*gate) * up;
                }
            }
        }));
    });
}

fn backward_on_host(pair: &mut [f32], hidden: &mut [f32], width: usize, activation: Activation) {
    let per_task = rows::per_task(width);
    let tasks = pair.chunks_mut(per_task * 2 * width).zip(hidden.chunks_mut(per_task * width)).collect();
    for_tasks(tasks, |(pair, hidden): (&mut [f32], &mut [f32])| {
        with_function!(activation, F => simd(|| {
            for (pair, hidden) in pair.chunks_exact_mut(2 * width).zip(hidden.chunks_exact_mut(width)) {
                let (gate, up) = pair.split_at_mut(width);
                for ((hidden, gate), up) in hidden.iter_mut().zip(gate).zip(up) {
                    let (x, y, slope, value) = (*gate, *up, *hidden, F::value(*gate));
                    *gate = F::gradient(slope * y, x);
                    *up = slope * value;
                    *hidden = value * y;
                }
            }
        }));
    });
}
