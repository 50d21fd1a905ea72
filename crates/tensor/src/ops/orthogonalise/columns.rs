//! Matrices whose columns are divided into parts.

use device::{Backend, Function, bf16};

use super::kernels::{FAMILY, OPERATOR};
use crate::ops::gpu;
use crate::{Result, Tensor};

/// Joins `parts` parts `[m, n / parts]`, one after another in memory, into `x_mn`.
pub(super) fn join(parts: &Tensor, x_mn: &Tensor, count: usize) -> Result<()> {
    copy("join_columns", [parts, x_mn], x_mn, count, |whole, parts, at, part| whole[at] = parts[part])
}

/// Divides `x_mn` into `count` parts `[m, n / count]`, one after another in memory.
pub(super) fn divide(x_mn: &Tensor, parts: &Tensor, count: usize) -> Result<()> {
    copy("divide_columns", [x_mn, parts], x_mn, count, |parts, whole, at, part| parts[part] = whole[at])
}

/// Copies from the first tensor to the second. `body(to, from, at, part)` copies the element with the index
/// `at` in the matrix and `part` in its parts.
fn copy(
    kernel: &'static str,
    [from, to]: [&Tensor; 2],
    x_mn: &Tensor,
    count: usize,
    body: impl Fn(&mut [bf16], &[bf16], usize, usize),
) -> Result<()> {
    let m = x_mn.shape().rows();
    let n = x_mn.shape().columns();
    let width = n / count;
    match x_mn.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let mut to = to.write::<bf16>()?;
            let from = from.read::<bf16>()?;
            for at in 0..m * n {
                let column = at % n;
                body(&mut to, &from, at, (column / width * m + at / n) * width + column % width);
            }
            Ok(())
        }
        Backend::Cuda => {
            let word = |number| gpu::word(OPERATOR, number);
            let launch = x_mn.device().kernel(Function::new(&FAMILY, kernel)).read(from).write(to);
            let launch = launch.u32(word(m)?).u32(word(n)?).u32(word(width)?);
            let blocks = word((m * n).div_ceil(gpu::THREADS as usize))?;
            Ok(launch.cost(gpu::bytes(&[from, to]), 0).launch([blocks, 1, 1], gpu::THREADS)?)
        }
    }
}
