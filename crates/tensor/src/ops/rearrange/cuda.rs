//! Launches of `kernels/rearrange.cu`.

use device::{Family, Function};

use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::ops::layout::{Layout, Sizes, add_layout, add_sizes};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family =
    family!("rearrange", headers: ["layout.cuh"], constants: &[gpu::THREADS_CONSTANT]);

/// Copies an array of `sizes` elements from one layout to another.
pub(super) fn copy(
    operator: &'static str,
    sizes: Sizes,
    (x, from): (&Tensor, Layout),
    (out, to): (&Tensor, Layout),
) -> Result<()> {
    let count: usize = sizes.iter().product();
    if count == 0 {
        return Ok(());
    }
    let kernel = Function::new(&FAMILY, "copy").with_dtype(out.dtype());
    let launch = out.device().kernel(kernel).read(x).write(out);
    let launch = add_layout(add_layout(add_sizes(operator, launch, &sizes)?, &from), &to).u64(count as u64);
    let launch = launch.cost(2 * (count * out.dtype().bytes()) as u64, 0);
    let blocks = gpu::word(operator, count.div_ceil(gpu::THREADS as usize))?;
    Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
}
