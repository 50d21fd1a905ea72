//! Division of a matrix by its Frobenius norm.

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, Function, bf16};

use super::kernels::{FAMILY, OPERATOR};
use crate::ops::{gpu, norm, rows};
use crate::{Result, Tensor};

/// Maximum number of blocks: each adds all sums.
const MOST_BLOCKS: usize = 1024;
/// Elements that a block copies at a time.
const STEP: usize = 8 * gpu::THREADS as usize;

/// Writes `x_mn` / max(norm, `epsilon`) to `out_mn`. `sums` is scratch for the norm's sums.
pub(super) fn normalise(x_mn: &Tensor, sums: &Tensor, out_mn: &Tensor, epsilon: f32) -> Result<()> {
    norm::chunk_sums(x_mn, sums)?;
    match x_mn.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let total: f64 = sums.values()?.iter().map(|sum| f64::from(*sum)).sum();
            let factor = 1.0 / (total.sqrt() as f32).max(epsilon);
            let x_mn = x_mn.read::<bf16>()?;
            let x: &[bf16] = &x_mn;
            for_pieces(&mut out_mn.write::<bf16>()?, CHUNK, |index, out| {
                let x = rows::piece(x, index, CHUNK);
                out.iter_mut().zip(x).for_each(|(out, x)| *out = bf16::from_f32(x.to_f32() * factor));
            });
            Ok(())
        }
        Backend::Cuda => {
            let elements = x_mn.elements();
            let launch = x_mn.device().kernel(Function::new(&FAMILY, "normalise"));
            let launch = launch.read(x_mn).read(sums).write(out_mn).u64(elements as u64);
            let launch = launch.u32(gpu::word(OPERATOR, sums.elements())?).f32(epsilon);
            let launch = launch.u32(u32::from(gpu::aligned(&[x_mn, out_mn])));
            let blocks = gpu::word(OPERATOR, elements.div_ceil(STEP).min(MOST_BLOCKS))?;
            let launch = launch.cost(gpu::bytes(&[x_mn, out_mn, sums]), elements as u64);
            Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
        }
    }
}
