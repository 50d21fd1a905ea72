//! Launches of `kernels/rearrange.cu`.

use device::{Family, Function};

use super::words::Words;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::ops::layout::{Layout, Sizes, add_layout, add_sizes};
use crate::{Result, Tensor, TensorError};

/// Words of a thread.
const WORDS: u32 = 4;

pub(crate) static FAMILY: Family = family!(
    "rearrange",
    headers: ["layout.cuh"],
    constants: &[gpu::THREADS_CONSTANT, ("WORDS", WORDS)],
);

/// Copies an array of `sizes` elements from one layout to another.
pub(super) fn copy(
    operator: &'static str,
    sizes: Sizes,
    (x, from): (&Tensor, Layout),
    (out, to): (&Tensor, Layout),
) -> Result<()> {
    let elements: usize = sizes.iter().product();
    if elements == 0 {
        return Ok(());
    }
    let words = Words::widest(sizes, [from, to], [gpu::address(x), gpu::address(out)], out.dtype().bytes());
    let name = match words.bytes {
        2 => "copy2",
        4 => "copy4",
        8 => "copy8",
        16 => "copy16",
        size => return Err(TensorError::TooLarge { operator, size }),
    };
    let count: usize = words.sizes.iter().product();
    let launch = out.device().kernel(Function::new(&FAMILY, name)).read(x).write(out);
    let launch = add_sizes(operator, launch, &words.sizes)?;
    let launch = words.layouts.iter().fold(launch, add_layout).u64(count as u64);
    let launch = launch.cost(2 * (elements * out.dtype().bytes()) as u64, 0);
    let blocks = gpu::word(operator, count.div_ceil((gpu::THREADS * WORDS) as usize))?;
    Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
}
