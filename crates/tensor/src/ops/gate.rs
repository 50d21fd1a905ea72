//! The gate of a gated feed-forward layer (Shazeer, *GLU Variants Improve Transformer*, 2020): activation(g)
//! · u for rows `[g | u]`. With a [`Clamp`], as in gpt-oss: activation(min(g, limit)) · (clamp(u, −limit,
//! limit) + offset).
//!
//! The backward pass needs only those rows: it recomputes the output while it computes their gradients.

use device::cuda::Launch;
use device::parallel::{for_pieces, for_tasks, simd};
use device::{Backend, Category, Family, Function, Request};

use super::activation::{Activation, Elementary, with_function};
use super::kernels::family;
use super::{check, gpu, rows};
use crate::{Result, Tensor};

pub(super) static FAMILY: Family = family!(
    "gate",
    headers: ["activation.cuh", "gate.cuh", "maximum.cuh"],
    constants: &[gpu::THREADS_CONSTANT, gpu::CELLS_CONSTANT],
);

/// The function of a gate. An [`Activation`] converts to a gate without a clamp.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gate {
    /// The activation applied to g.
    pub activation: Activation,
    /// Bounds of g and u; `None`: no bounds.
    pub clamp: Option<Clamp>,
}

/// Bounds of g and u, and an offset of u.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// Largest g, and largest magnitude of u; infinite: no limit. No gradient passes beyond it.
    pub limit: f32,
    /// Number added to u.
    pub offset: f32,
}

impl From<Activation> for Gate {
    fn from(activation: Activation) -> Self {
        Gate { activation, clamp: None }
    }
}

impl Gate {
    fn kernel(self) -> &'static str {
        match (self.clamp, self.activation) {
            (None, activation) => activation.name_of_kernel(),
            (_, Activation::None) => "identity_clamped",
            (_, Activation::Relu) => "relu_clamped",
            (_, Activation::ReluSquared) => "relu_squared_clamped",
            (_, Activation::Silu) => "silu_clamped",
            (_, Activation::Gelu) => "gelu_clamped",
            (_, Activation::GeluErf) => "gelu_erf_clamped",
            (_, Activation::QuickGelu) => "quick_gelu_clamped",
        }
    }

    fn gradient_kernel(self) -> &'static str {
        match (self.clamp, self.activation) {
            (None, activation) => activation.name_of_gradient(),
            (_, Activation::None) => "identity_clamped_gradient",
            (_, Activation::Relu) => "relu_clamped_gradient",
            (_, Activation::ReluSquared) => "relu_squared_clamped_gradient",
            (_, Activation::Silu) => "silu_clamped_gradient",
            (_, Activation::Gelu) => "gelu_clamped_gradient",
            (_, Activation::GeluErf) => "gelu_erf_clamped_gradient",
            (_, Activation::QuickGelu) => "quick_gelu_clamped_gradient",
        }
    }

    /// Returns the name of the kernel that sums the gate's output times each row of experts.
    pub(super) fn dot_kernel(self) -> &'static str {
        match (self.clamp.is_some(), self.activation) {
            (false, Activation::None) => "identity_dot",
            (false, Activation::Relu) => "relu_dot",
            (false, Activation::ReluSquared) => "relu_squared_dot",
            (false, Activation::Silu) => "silu_dot",
            (false, Activation::Gelu) => "gelu_dot",
            (false, Activation::GeluErf) => "gelu_erf_dot",
            (false, Activation::QuickGelu) => "quick_gelu_dot",
            (true, Activation::None) => "identity_clamped_dot",
            (true, Activation::Relu) => "relu_clamped_dot",
            (true, Activation::ReluSquared) => "relu_squared_clamped_dot",
            (true, Activation::Silu) => "silu_clamped_dot",
            (true, Activation::Gelu) => "gelu_clamped_dot",
            (true, Activation::GeluErf) => "gelu_erf_clamped_dot",
            (true, Activation::QuickGelu) => "quick_gelu_clamped_dot",
        }
    }

    /// Adds the limit and offset to a launch of a kernel with a clamp.
    pub(super) fn add_to(self, launch: Launch<'_>) -> Launch<'_> {
        match self.clamp {
            Some(Clamp { limit, offset }) => launch.f32(limit).f32(offset),
            None => launch,
        }
    }
}

impl Clamp {
    /// Returns the bounded g, and the bounded u plus the offset.
    #[inline(always)]
    fn bound(self, gate: f32, up: f32) -> [f32; 2] {
        let Clamp { limit, offset } = self;
        // NaN for NaN.
        let gate = if gate > limit { limit } else { gate };
        let up = if up > limit { limit } else { up };
        [gate, if up < -limit { -limit } else { up } + offset]
    }

    /// Returns the gradients of g and u from the gradients of the bounded operands.
    #[inline(always)]
    fn pass(self, [gate, up]: [f32; 2], [of_gate, of_up]: [f32; 2]) -> [f32; 2] {
        let inside = |gradient, beyond| if beyond { 0.0 } else { gradient };
        [inside(of_gate, gate > self.limit), inside(of_up, up.abs() > self.limit)]
    }
}

/// Computes `activation(g) · u` of `pair_t2f [.., 2 · width]`, f32 or bf16, as `[.., width]`.
///
/// # Errors
/// Another type, an odd number of columns, out of memory.
pub fn forward(pair_t2f: &Tensor, gate: impl Into<Gate>) -> Result<Tensor> {
    const OPERATOR: &str = "gate.forward";
    let gate = gate.into();
    let width = check_pair(OPERATOR, pair_t2f)?;
    let hidden_tf = allocate(OPERATOR, pair_t2f, width, Category::Activation)?;
    match pair_t2f.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => forward_on_host(&pair_t2f.values()?, &mut hidden_tf.values_mut()?, width, gate),
        Backend::Cuda => {
            launch(OPERATOR, gate.kernel(), pair_t2f, &hidden_tf, 3, |launch| gate.add_to(launch))?
        }
    }
    Ok(hidden_tf)
}

/// Allocates the output of [`forward`] without computing it, for recomputation, where nothing reads it.
pub fn forward_again(pair_t2f: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "gate.forward";
    let width = check_pair(OPERATOR, pair_t2f)?;
    allocate(OPERATOR, pair_t2f, width, Category::Activation)
}

/// Replaces `pair_t2f` by its gradient, and `hidden_tf`, the output's gradient, by the recomputed output,
/// which the next layer's weight gradient reads.
pub fn backward(pair_t2f: &Tensor, hidden_tf: &Tensor, gate: impl Into<Gate>) -> Result<()> {
    backward_measured(pair_t2f, hidden_tf, gate.into(), None)
}

/// Computes [`backward`], and writes the largest magnitude of the gradients to `cells` on a GPU.
pub(super) fn backward_measured(
    pair_t2f: &Tensor,
    hidden_tf: &Tensor,
    gate: Gate,
    cells: Option<&Tensor>,
) -> Result<()> {
    const OPERATOR: &str = "gate.backward";
    let width = check_pair(OPERATOR, pair_t2f)?;
    check::computed(OPERATOR, &[("pair", pair_t2f), ("hidden", hidden_tf)])?;
    check::shape(OPERATOR, "hidden", hidden_tf, check::with_columns(pair_t2f.shape(), width))?;
    match pair_t2f.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            backward_on_host(&mut pair_t2f.values_mut()?, &mut hidden_tf.values_mut()?, width, gate);
            Ok(())
        }
        Backend::Cuda => launch(OPERATOR, gate.gradient_kernel(), pair_t2f, hidden_tf, 6, |launch| {
            gate.add_to(launch.write(cells))
        }),
    }
}

fn check_pair(operator: &'static str, pair_t2f: &Tensor) -> Result<usize> {
    check::computed(operator, &[("pair", pair_t2f)])?;
    let columns = pair_t2f.shape().columns();
    if !columns.is_multiple_of(2) {
        return Err(check::wrong(operator, "pair", pair_t2f, "an even number of columns".to_owned()));
    }
    Ok(columns / 2)
}

fn allocate(operator: &'static str, pair_t2f: &Tensor, width: usize, category: Category) -> Result<Tensor> {
    let shape = check::with_columns(pair_t2f.shape(), width);
    Tensor::empty(pair_t2f.device(), shape, pair_t2f.dtype(), Request::new(category, operator))
}

/// Launches a kernel with the arguments `more`. Its cost counts `moved` times the elements of `hidden_tf`.
fn launch<'a>(
    operator: &'static str,
    name: &'static str,
    pair_t2f: &'a Tensor,
    hidden_tf: &Tensor,
    moved: u64,
    more: impl FnOnce(Launch<'a>) -> Launch<'a>,
) -> Result<()> {
    let width = hidden_tf.shape().columns();
    let lanes = gpu::lanes(hidden_tf.dtype());
    let vector = width.is_multiple_of(lanes) && gpu::aligned(&[pair_t2f, hidden_tf]);
    let items = hidden_tf.elements() / if vector { lanes } else { 1 };
    let kernel = Function::new(&FAMILY, name).with_dtype(hidden_tf.dtype());
    let launch = pair_t2f.device().kernel(kernel).write(pair_t2f).write(hidden_tf);
    let launch = launch.u32(gpu::word(operator, items)?).u32(gpu::word(operator, width)?);
    let launch = more(launch.u32(u32::from(vector)));
    let launch = launch.cost(moved * hidden_tf.bytes() as u64, 8 * hidden_tf.elements() as u64);
    let blocks = items.div_ceil(gpu::THREADS as usize);
    Ok(launch.launch([gpu::word(operator, blocks)?, 1, 1], gpu::THREADS)?)
}

fn forward_on_host(pair_t2f: &[f32], hidden_tf: &mut [f32], width: usize, gate: Gate) {
    let per_task = rows::per_task(width);
    for_pieces(hidden_tf, per_task * width, |index, hidden| {
        let pair = rows::piece(pair_t2f, index, per_task * 2 * width);
        with_function!(gate.activation, F => simd(#[inline(always)] || match gate.clamp {
            None => forward_rows(
                pair,
                hidden,
                width,
                #[inline(always)]
                |g, u| F::value(g) * u,
            ),
            Some(clamp) => forward_rows(
                pair,
                hidden,
                width,
                #[inline(always)]
                |g, u| {
                    let [g, u] = clamp.bound(g, u);
                    F::value(g) * u
                },
            ),
        }));
    });
}

#[inline(always)]
fn forward_rows(pair: &[f32], hidden: &mut [f32], width: usize, value: impl Fn(f32, f32) -> f32) {
    for (pair, hidden) in pair.chunks_exact(2 * width).zip(hidden.chunks_exact_mut(width)) {
        let (gate, up) = pair.split_at(width);
        for ((hidden, gate), up) in hidden.iter_mut().zip(gate).zip(up) {
            *hidden = value(*gate, *up);
        }
    }
}

fn backward_on_host(pair_t2f: &mut [f32], hidden_tf: &mut [f32], width: usize, gate: Gate) {
    let per_task = rows::per_task(width);
    let tasks =
        pair_t2f.chunks_mut(per_task * 2 * width).zip(hidden_tf.chunks_mut(per_task * width)).collect();
    for_tasks(tasks, |(pair, hidden): (&mut [f32], &mut [f32])| {
        with_function!(gate.activation, F => simd(#[inline(always)] || match gate.clamp {
            None => backward_rows(
                pair,
                hidden,
                width,
                #[inline(always)]
                |g, u, slope| {
                    let value = F::value(g);
                    ([F::gradient(slope * u, g), slope * value], value * u)
                },
            ),
            Some(clamp) => backward_rows(
                pair,
                hidden,
                width,
                #[inline(always)]
                |g, u, slope| {
                    let [x, y] = clamp.bound(g, u);
                    let value = F::value(x);
                    (clamp.pass([g, u], [F::gradient(slope * y, x), slope * value]), value * y)
                },
            ),
        }));
    });
}

/// Replaces g and u by their gradients, and the output's gradient by the output.
#[inline(always)]
fn backward_rows(
    pair: &mut [f32],
    hidden: &mut [f32],
    width: usize,
    gradients: impl Fn(f32, f32, f32) -> ([f32; 2], f32),
) {
    for (pair, hidden) in pair.chunks_exact_mut(2 * width).zip(hidden.chunks_exact_mut(width)) {
        let (gate, up) = pair.split_at_mut(width);
        for ((hidden, gate), up) in hidden.iter_mut().zip(gate).zip(up) {
            ([*gate, *up], *hidden) = gradients(*gate, *up, *hidden);
        }
    }
}
