//! Launches of `kernels/latent_qkv.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::heads::LatentHeads;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!("latent_qkv", constants: &[gpu::THREADS_CONSTANT]);

pub(super) fn forward(
    operator: &'static str,
    [queries, keys_values, rotated]: [&Tensor; 3],
    heads: LatentHeads,
    packed: &Tensor,
) -> Result<()> {
    let launch = packed.device().kernel(Function::new(&FAMILY, "pack").with_dtype(packed.dtype()));
    let launch = launch.read(queries).read(keys_values).read(rotated).write(packed);
    launch_rows(operator, launch, heads, [queries, keys_values, rotated, packed])
}

pub(super) fn backward(
    operator: &'static str,
    dy: &Tensor,
    heads: LatentHeads,
    [queries, keys_values, rotated]: &[Tensor; 3],
) -> Result<()> {
    let launch = dy.device().kernel(Function::new(&FAMILY, "unpack").with_dtype(dy.dtype())).read(dy);
    let launch = launch.write(queries).write(keys_values).write(rotated);
    launch_rows(operator, launch, heads, [queries, keys_values, rotated, dy])
}

/// Launches one block per row. The last of `arrays` has the packed rows.
fn launch_rows(
    operator: &'static str,
    launch: Launch<'_>,
    heads: LatentHeads,
    arrays: [&Tensor; 4],
) -> Result<()> {
    let LatentHeads { query, key_value, rotated, plain, value_width, interleaved } = heads;
    let packed = arrays[3];
    let lanes = gpu::lanes(packed.dtype());
    let whole = [rotated, plain, value_width].iter().all(|size| size.is_multiple_of(lanes));
    let vector = whole && gpu::aligned(&arrays);
    let word = |size| gpu::word(operator, size);
    let launch = launch.u32(word(query)?).u32(word(key_value)?).u32(word(rotated)?).u32(word(plain)?);
    let launch = launch.u32(word(value_width)?).u32(u32::from(interleaved)).u32(u32::from(vector));
    let launch = launch.cost(2 * packed.bytes() as u64, 0);
    Ok(launch.launch([word(packed.shape().rows())?, 1, 1], gpu::THREADS)?)
}
