//! Launches of `kernels/pooling.cu`.

use device::{Family, Function};

use super::windows::WindowShape;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor, TensorError};

pub(crate) static FAMILY: Family = family!("pooling", constants: &[gpu::THREADS_CONSTANT]);

/// Maximum elements of a window in the backward pass of a maximum, which stores positions as 16-bit numbers.
const MOST_PLACES: usize = 1 << 16;

/// Computes `out` from `operands`.
pub(super) fn pool(
    operator: &'static str,
    kernel: &'static str,
    operands: &[&Tensor],
    out: &Tensor,
    shape: &WindowShape,
) -> Result<()> {
    launch(
        operator,
        Function::new(&FAMILY, kernel).with_dtype(out.dtype()),
        operands,
        out,
        out.elements(),
        shape,
    )
}

/// Returns the bytes of the workspace of [`maximum_backward`]: the 16-bit position of each window's largest
/// element.
pub(super) fn positions_bytes(shape: &WindowShape) -> usize {
    2 * shape.output().iter().product::<usize>()
}

/// Computes dx, the gradient of `x`. `positions` is a workspace of [`positions_bytes`].
pub(super) fn maximum_backward(
    operator: &'static str,
    dy: &Tensor,
    x: &Tensor,
    positions: &Tensor,
    dx: &Tensor,
    shape: &WindowShape,
) -> Result<()> {
    let size = shape.windows.size.iter().product();
    if size > MOST_PLACES {
        return Err(TensorError::TooLarge { operator, size });
    }
    let find = Function::new(&FAMILY, "positions").with_dtype(x.dtype());
    launch(operator, find, &[x], positions, dy.elements(), shape)?;
    let gather = Function::new(&FAMILY, "maximum_backward").with_dtype(x.dtype());
    launch(operator, gather, &[dy, positions], dx, dx.elements(), shape)
}

/// Launches a kernel that computes `elements` of `out` from `operands`, one vector of channels per thread.
/// The first operand has the compute type.
fn launch(
    operator: &'static str,
    kernel: Function,
    operands: &[&Tensor],
    out: &Tensor,
    elements: usize,
    shape: &WindowShape,
) -> Result<()> {
    let lanes = gpu::lanes(operands[0].dtype());
    let aligned = gpu::aligned(operands) && gpu::aligned(&[out]);
    let vector = aligned && shape.channels.is_multiple_of(lanes);
    let threads = gpu::word(operator, if vector { elements / lanes } else { elements })?;
    let mut launch = out.device().kernel(kernel);
    for operand in operands {
        launch = launch.read(*operand);
    }
    launch = launch.write(out);
    let windows = shape.windows;
    let sizes = [
        shape.input,
        [shape.channels, shape.output[0]],
        [shape.output[1], windows.size[0]],
        [windows.size[1], windows.stride[0]],
        [windows.stride[1], windows.padding[0]],
        [windows.padding[1], shape.divisor()],
    ];
    for size in sizes.as_flattened() {
        launch = launch.u32(gpu::word(operator, *size)?);
    }
    launch = launch.u32(threads).u32(u32::from(vector));
    let bytes = gpu::bytes(operands) + out.bytes() as u64;
    let blocks = [threads.div_ceil(gpu::THREADS), 1, 1];
    Ok(launch.cost(bytes, elements as u64).launch(blocks, gpu::THREADS)?)
}
