//! Launches of `kernels/pooling.cu`.

use device::{Family, Function};

use super::windows::WindowShape;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// `kernels/pooling.cu`.
pub(crate) static FAMILY: Family = family!("pooling", constants: &[gpu::THREADS_CONSTANT]);

/// Computes `out` from `operands` with a kernel, a vector of channels per thread.
pub(super) fn launch(
    operator: &'static str,
    kernel: &'static str,
    operands: &[&Tensor],
    out: &Tensor,
    shape: &WindowShape,
) -> Result<()> {
    let lanes = gpu::lanes(out.dtype());
    let aligned = gpu::aligned(operands) && gpu::aligned(&[out]);
    let vector = aligned && shape.channels.is_multiple_of(lanes);
    let threads = if vector { out.elements() / lanes } else { out.elements() };
    let mut launch = out.device().kernel(Function::new(&FAMILY, kernel).of(out.dtype()));
    for operand in operands {
        launch = launch.read(operand.region());
    }
    launch = launch.write(out.region());
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
    launch = launch.u32(gpu::word(operator, threads)?).u32(u32::from(vector));
    let bytes = gpu::bytes(operands) + out.bytes() as u64;
    let blocks = gpu::word(operator, threads.div_ceil(gpu::THREADS as usize))?;
    Ok(launch.cost(bytes, out.elements() as u64).launch([blocks, 1, 1], gpu::THREADS)?)
}
