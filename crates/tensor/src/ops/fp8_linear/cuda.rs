//! Launches of the kernels of `kernels/fp8_linear.cu`, and FP8 matmuls of cuBLASLt.

use device::{Epilogue, Family, Function, Matmul, Operand, Scales};

use super::call::{Call, SUMMED_ROWS};
use super::input::Input;
use super::quantised::{Quantised, Recipe, Scaled, padded};
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::kernels::family;
use crate::ops::{Activation, GradientTarget, gpu};
use crate::{Result, Tensor};

/// Elements that a thread loads at once in a cast.
const GROUP: usize = 8;
/// Groups that a thread reads in the search for a maximum.
const PER_THREAD: usize = 4;
/// Rows and columns of a block of a cast.
const SIDE: usize = SUMMED_ROWS;

pub(crate) static FAMILY: Family = family!(
    "fp8_linear",
    headers: ["activation.cuh", "columns.cuh", "fp8_operands.cuh", "maximum.cuh"],
    constants: columns::MEASURING_CONSTANTS,
);

/// Returns the names of an input's kernels: whole maximum, maxima of rows and columns, cast.
fn names(input: Input) -> [&'static str; 3] {
    macro_rules! kernels {
        ($kind:literal) => {
            [concat!($kind, "_maximum"), concat!($kind, "_outer_maxima"), concat!($kind, "_cast")]
        };
    }
    match input {
        Input::Plain => kernels!("plain"),
        Input::Activated(Activation::None) => kernels!("identity"),
        Input::Activated(Activation::Relu) => kernels!("relu"),
        Input::Activated(Activation::ReluSquared) => kernels!("relu_squared"),
        Input::Activated(Activation::Silu) => kernels!("silu"),
        Input::Activated(Activation::Gelu) => kernels!("gelu"),
        Input::Activated(Activation::GeluErf) => kernels!("gelu_erf"),
        Input::Activated(Activation::QuickGelu) => kernels!("quick_gelu"),
        Input::Gated(Activation::None) => kernels!("identity_gate"),
        Input::Gated(Activation::Relu) => kernels!("relu_gate"),
        Input::Gated(Activation::ReluSquared) => kernels!("relu_squared_gate"),
        Input::Gated(Activation::Silu) => kernels!("silu_gate"),
        Input::Gated(Activation::Gelu) => kernels!("gelu_gate"),
        Input::Gated(Activation::GeluErf) => kernels!("gelu_erf_gate"),
        Input::Gated(Activation::QuickGelu) => kernels!("quick_gelu_gate"),
    }
}

/// Returns 1 if every group of columns is aligned for 16-byte accesses, else 0.
fn is_vector(call: &Call<'_>) -> u32 {
    u32::from(gpu::aligned(&[call.x]))
}

/// Returns the grid of tiles over the matrix.
fn tiles(call: &Call<'_>) -> Result<[u32; 3]> {
    let word = |size: usize| gpu::word(call.operator, size.div_ceil(SIDE));
    Ok([word(call.columns)?, word(call.rows)?, 1])
}

/// Writes largest magnitudes to `words`: one for the whole array, or one for each row, then one for each
/// column.
pub(super) fn measure(call: &Call<'_>, words: &Tensor) -> Result<()> {
    let [maximum, outer_maxima, _] = names(call.input);
    let x = call.x;
    let word = |size| gpu::word(call.operator, size);
    words.zero()?;
    let kernel = |name| x.device().kernel(Function::new(&FAMILY, name).with_dtype(x.dtype()));
    let cost = (x.bytes() as u64, x.elements() as u64);
    match call.recipe {
        Recipe::Tensorwise => {
            let groups = call.rows * call.columns / GROUP;
            let launch = kernel(maximum).read(x).write(words).u64(groups as u64);
            let launch = launch.u32(word(call.columns)?).u32(is_vector(call)).cost(cost.0, cost.1);
            let blocks = word(groups.div_ceil(gpu::THREADS as usize * PER_THREAD))?;
            Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
        }
        Recipe::Rowwise => {
            let launch = kernel(outer_maxima).read(x).write(words);
            let launch = launch.u32(word(call.rows)?).u32(word(call.columns)?).u32(is_vector(call));
            Ok(launch.cost(cost.0, cost.1).launch(tiles(call)?, gpu::THREADS)?)
        }
    }
}

/// Casts into the layouts of `output`. Factors are computed from `maxima` and written; without `maxima` they
/// are read.
pub(super) fn cast(call: &Call<'_>, maxima: Option<&Tensor>, output: &Quantised) -> Result<()> {
    let x = call.x;
    let word = |size| gpu::word(call.operator, size);
    let Some(format) = output.layouts().next().map(|layout| layout.values.dtype()) else { return Ok(()) };
    let [.., cast] = names(call.input);
    let mut launch = x.device().kernel(Function::new(&FAMILY, cast).from_to(x.dtype(), format));
    launch = launch.read(x);
    let [rows, columns] =
        [&output.stored, &output.transposed].map(|layout| layout.as_ref().map(|layout| &layout.scales));
    let rows = if call.recipe == Recipe::Tensorwise { rows.or(columns) } else { rows };
    let [stored, transposed] =
        [&output.stored, &output.transposed].map(|layout| layout.as_ref().map(|layout| &layout.values));
    for operand in [maxima, rows, columns, stored, transposed, call.sums] {
        launch = launch.write(operand);
    }
    launch = launch.u32(word(call.rows)?).u32(word(call.columns)?).u32(word(padded(call.rows))?);
    launch = launch.u32(u32::from(call.recipe == Recipe::Rowwise)).u32(is_vector(call));
    let written: usize = output.layouts().map(|layout| layout.values.bytes()).sum();
    let cost = (x.bytes() + written) as u64;
    Ok(launch.cost(cost, 2 * x.elements() as u64).launch(tiles(call)?, gpu::THREADS)?)
}

/// Adds the column sums of all blocks.
pub(super) fn finish_sums(operator: &'static str, sums: &Tensor, bias: &GradientTarget) -> Result<()> {
    let runs = sums.shape().rows();
    let width = sums.shape().columns();
    let cut = Cut::divide_sums(operator, runs, width)?;
    columns::finish(&FAMILY, sums, 0, &cut, cut.width, bias)
}

/// Overwrites dy with dy · activation', and writes the largest magnitude to `cells`. `dy` has a multiple of
/// [`GROUP`] elements.
pub(super) fn backward_activation(
    dy: &Tensor,
    saved: &Tensor,
    activation: Activation,
    cells: &Tensor,
) -> Result<()> {
    let groups = dy.elements() / GROUP;
    let kernel = Function::new(&FAMILY, activation.name_of_gradient()).with_dtype(dy.dtype());
    let launch = dy.device().kernel(kernel).read(saved).write(dy).write(cells);
    let launch = launch.u64(groups as u64).u32(u32::from(gpu::aligned(&[dy, saved])));
    let launch = launch.cost(3 * dy.bytes() as u64, 8 * dy.elements() as u64);
    let blocks = groups.div_ceil(gpu::THREADS as usize * PER_THREAD);
    let blocks = gpu::word("fp8_linear.backward_activation", blocks)?;
    Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
}

fn operand(scaled: &Scaled, recipe: Recipe) -> Operand<'_> {
    let factors = scaled.scales.region();
    let factors = match recipe {
        Recipe::Tensorwise => Scales::Tensor(factors),
        Recipe::Rowwise => Scales::Outer(factors),
    };
    Operand::new(scaled.values.region(), scaled.values.dtype()).scaled(factors)
}

/// Computes out (+)= a · bᵀ + bias.
pub(super) fn multiply(
    a: &Scaled,
    b: &Scaled,
    bias: Option<&Tensor>,
    out: &Tensor,
    accumulate: bool,
    fast: bool,
) -> Result<()> {
    let m = a.values.shape().rows();
    let n = b.values.shape().rows();
    let k = a.values.shape().columns();
    let epilogue = bias.map_or(Epilogue::None, |bias| Epilogue::Bias(bias.region()));
    // A single row has one factor in both recipes; the other operand has at least 16 rows.
    let recipe =
        if a.scales.elements() * b.scales.elements() > 1 { Recipe::Rowwise } else { Recipe::Tensorwise };
    let a = operand(a, recipe);
    let b = operand(b, recipe).transposed();
    let device = out.device();
    let out = Operand::new(out.region(), out.dtype());
    Ok(device.matmul(&Matmul { m, n, k, a, b, out, accumulate, epilogue, fast })?)
}
