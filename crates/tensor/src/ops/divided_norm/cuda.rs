//! Launches of `kernels/divided_norm.cu`.

use device::cuda::Launch;
use device::{DType, Family, Function};

use super::saved::Saved;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family =
    family!("divided_norm", headers: ["held_rows.cuh"], constants: &[gpu::THREADS_CONSTANT]);

pub(super) fn squares(operator: &'static str, x: &Tensor, sums: &Tensor) -> Result<()> {
    let launch = kernel("squares", x).read(x).write(sums);
    launch_rows(operator, launch, x, &[x], (None, 2))
}

pub(super) fn rstd(operator: &'static str, sums: &Tensor, columns: usize, epsilon: f32) -> Result<()> {
    let kernel = sums.device().kernel(Function::new(&FAMILY, "rstds").with_dtype(DType::F32));
    let rows = gpu::word(operator, sums.elements())?;
    let columns = gpu::word(operator, columns)?;
    let launch = kernel.write(sums).u32(rows).u32(columns).f32(epsilon);
    let launch = launch.cost(2 * sums.bytes() as u64, 4 * u64::from(rows));
    Ok(launch.launch([rows.div_ceil(gpu::THREADS), 1, 1], gpu::THREADS)?)
}

pub(super) fn forward(
    operator: &'static str,
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    y: &Tensor,
) -> Result<()> {
    let launch = kernel("scale", x).read(x).read(weight).read(rstd);
    launch_rows(operator, launch.write(y), x, &[x, weight, y], (None, 2))
}

pub(super) fn products(
    operator: &'static str,
    dy: &Tensor,
    Saved { x, weight, rstd }: Saved<'_>,
    sums: &Tensor,
) -> Result<()> {
    let launch = kernel("products", x).read(dy).read(x).read(weight).read(rstd).write(sums);
    launch_rows(operator, launch, x, &[dy, x, weight], (None, 4))
}

pub(super) fn backward_input(
    operator: &'static str,
    dy: &Tensor,
    Saved { x, weight, rstd }: Saved<'_>,
    sums: &Tensor,
    columns: usize,
    dx: &Tensor,
) -> Result<()> {
    let launch = kernel("gradient", x).read(dy).read(x).read(weight).read(rstd).read(sums).write(dx);
    launch_rows(operator, launch, x, &[dy, x, weight, dx], (Some(columns), 5))
}

fn kernel<'a>(name: &'static str, x: &'a Tensor) -> Launch<'a> {
    x.device().kernel(Function::new(&FAMILY, name).with_dtype(x.dtype()))
}

/// Launches a block per row of `x`. The kernel takes the width of rows, `columns` if present, and whether the
/// rows of `arrays` consist of whole vectors.
fn launch_rows(
    operator: &'static str,
    launch: Launch<'_>,
    x: &Tensor,
    arrays: &[&Tensor],
    (columns, flops_per_element): (Option<usize>, u64),
) -> Result<()> {
    let rows = x.shape().rows();
    let width = x.shape().columns();
    let vector = width.is_multiple_of(gpu::lanes(x.dtype())) && gpu::aligned(arrays);
    let mut launch = launch.u32(gpu::word(operator, width)?);
    if let Some(columns) = columns {
        launch = launch.u32(gpu::word(operator, columns)?);
    }
    let launch = launch.u32(u32::from(vector));
    let launch = launch.cost(gpu::bytes(arrays), flops_per_element * x.elements() as u64);
    Ok(launch.launch([gpu::word(operator, rows)?, 1, 1], gpu::THREADS)?)
}
