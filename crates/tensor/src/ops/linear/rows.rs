//! Launches of `kernels/linear_rows.cu`.

use device::{DType, Family, Function};

use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// `kernels/linear_rows.cu`.
pub(crate) static FAMILY: Family =
    family!("linear_rows", headers: ["mma.cuh"], constants: &[gpu::THREADS_CONSTANT]);

/// Inputs of a step of a warp.
const STEP: usize = 64;
/// Most rows.
const MOST_ROWS: usize = 64;
/// Most outputs that are divided in small blocks: two for each multiprocessor of a large GPU.
const FEW_OUTPUTS: usize = 16 * 264;

/// Returns whether the kernels compute a layer's outputs.
pub(super) fn takes(x: &Tensor, weight: &Tensor) -> bool {
    let is_half = matches!(x.dtype(), DType::Bf16 | DType::F16);
    let (rows, inputs) = (x.shape().rows(), x.shape().columns());
    is_half && rows <= MOST_ROWS && inputs.is_multiple_of(STEP) && gpu::aligned(&[x, weight])
}

/// The first `rows` rows of out = x · Wᵀ + b; the others are 0.
pub(super) fn affine(
    operator: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    out: &Tensor,
    rows: usize,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let (inputs, outputs) = (x.shape().columns(), out.shape().columns());
    if rows == 0 || outputs == 0 {
        return out.zero();
    }
    // Outputs of a block, and the kernel.
    let (block, name) = match (outputs <= FEW_OUTPUTS, rows) {
        (true, ..=8) => (16, "few_1"),
        (true, ..=16) => (16, "few_2"),
        (true, ..=32) => (16, "few_4"),
        (true, _) => (16, "few_8"),
        (false, ..=8) => (32, "many_1"),
        (false, ..=16) => (32, "many_2"),
        (false, ..=32) => (32, "many_4"),
        (false, _) => (32, "many_8"),
    };
    let launch = x.device().kernel(Function::new(&FAMILY, name).of(x.dtype()));
    let launch = launch.read(x.region()).read(weight.region());
    let launch = match bias {
        Some(bias) => launch.read(bias.region()),
        None => launch.null(),
    };
    let launch = launch.write(out.region()).u32(word(rows)?).u32(word(x.shape().rows())?);
    let launch = launch.u32(word(inputs)?).u32(word(outputs)?);
    let moved = weight.bytes() + rows * inputs * x.dtype().bytes() + out.bytes();
    let launch = launch.cost(moved as u64, 2 * (rows * inputs * outputs) as u64);
    Ok(launch.launch([word(outputs.div_ceil(block))?, 1, 1], gpu::THREADS)?)
}
