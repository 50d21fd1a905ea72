//! Launches of `kernels/hash.cu`.

use device::{DType, Family, Function};

use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor, TensorError};

pub(crate) static FAMILY: Family = family!("hash", constants: &[gpu::THREADS_CONSTANT]);

/// Minimum elements per thread before another block is launched.
const EACH: usize = 8;
/// Maximum blocks of a launch. Each block ends with one atomic addition.
const MOST_BLOCKS: usize = 2048;
/// Integer operations per element, for the cost of a launch.
const OPERATIONS: u64 = 9;

/// Adds the hash of a tensor to `sum`, as [`super::add_to`] does.
pub(super) fn add_to(operator: &'static str, sum: &Tensor, tensor: &Tensor) -> Result<()> {
    let kernel = match tensor.dtype().bytes() {
        1 => Function::new(&FAMILY, "add_1"),
        2 => Function::new(&FAMILY, "add_2"),
        4 => Function::new(&FAMILY, "add_4"),
        _ => {
            let operand = "tensor";
            let actual = tensor.dtype();
            let expected = DType::F32;
            return Err(TensorError::DType { operator, operand, actual, expected });
        }
    };
    let elements = tensor.elements();
    let blocks = elements.div_ceil(EACH * gpu::THREADS as usize).clamp(1, MOST_BLOCKS);
    let launch = tensor.device().kernel(kernel).read(tensor).write(sum);
    let launch = launch.u64(elements as u64).cost(tensor.bytes() as u64, OPERATIONS * elements as u64);
    Ok(launch.launch([gpu::word(operator, blocks)?, 1, 1], gpu::THREADS)?)
}
