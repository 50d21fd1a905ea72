//! Launches of `kernels/rms_norm.cu`.

use device::{Family, Function};

use super::output::Output;
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::held_rows::form;
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

/// `kernels/rms_norm.cu`.
pub(crate) static FAMILY: Family =
    family!("rms_norm", headers: ["columns.cuh", "held_rows.cuh"], constants: columns::CONSTANTS);

/// Normalises the rows of `x`; with `residual` (branch, sum), stores x + branch in `sum` and normalises its
/// rows.
pub(super) fn forward(
    operator: &'static str,
    x: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    weight: &Tensor,
    epsilon: f32,
    made: &Output,
) -> Result<()> {
    let (rows, width) = (x.shape().rows(), x.shape().columns());
    let more: Vec<&Tensor> = residual.iter().flat_map(|(branch, sum)| [*branch, *sum]).collect();
    let aligned = gpu::aligned(&[x, weight, &made.output]) && gpu::aligned(&more);
    let form = form(width, x.dtype(), aligned);
    let mut launch = x.device().kernel(Function::new(&FAMILY, form.forward).of(x.dtype())).read(x.region());
    launch = match residual {
        Some((branch, _)) => launch.read(branch.region()),
        None => launch.null(),
    };
    launch = launch.read(weight.region());
    launch = match residual {
        Some((_, sum)) => launch.write(sum.region()),
        None => launch.null(),
    };
    launch = launch.write(made.output.region()).write(made.rstd.region());
    launch = launch.u32(gpu::word(operator, rows)?).u32(gpu::word(operator, width)?).f32(epsilon);
    let bytes = gpu::bytes(&[x, &made.output, &made.rstd]) + gpu::bytes(&more);
    let blocks = gpu::word(operator, rows.div_ceil(form.rows_per_block))?;
    Ok(launch.cost(bytes, 4 * x.elements() as u64).launch([blocks, 1, 1], gpu::THREADS)?)
}

/// Computes the input's gradient, plus `dsum`.
pub(super) fn backward_input(
    operator: &'static str,
    dy: &Tensor,
    dsum: Option<&Tensor>,
    x: &Tensor,
    rstd: &Tensor,
    weight: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let (rows, width) = (x.shape().rows(), x.shape().columns());
    let more: Vec<&Tensor> = dsum.into_iter().collect();
    let aligned = gpu::aligned(&[dy, x, weight, dx]) && gpu::aligned(&more);
    let form = form(width, x.dtype(), aligned);
    let function = Function::new(&FAMILY, form.backward).of(x.dtype());
    let mut launch = x.device().kernel(function).read(dy.region());
    launch = match dsum {
        Some(dsum) => launch.read(dsum.region()),
        None => launch.null(),
    };
    launch = launch.read(x.region()).read(weight.region()).read(rstd.region());
    launch = launch.write(dx.region()).u32(gpu::word(operator, rows)?).u32(gpu::word(operator, width)?);
    let bytes = gpu::bytes(&[dy, x, dx, rstd]) + gpu::bytes(&more);
    let blocks = gpu::word(operator, rows.div_ceil(form.rows_per_block))?;
    Ok(launch.cost(bytes, 8 * x.elements() as u64).launch([blocks, 1, 1], gpu::THREADS)?)
}

/// weight (+)= Σ over rows of dy · x · rstd, with partial sums in `workspace`.
pub(super) fn backward_weight(
    operator: &'static str,
    dy: &Tensor,
    x: &Tensor,
    rstd: &Tensor,
    workspace: &Tensor,
    weight: &GradientTarget,
) -> Result<()> {
    let cut = Cut::of(operator, dy, gpu::aligned(&[dy, x]))?;
    let kernel = Function::new(&FAMILY, "weight_sums").of(dy.dtype());
    let launch = dy.device().kernel(kernel).read(dy.region()).read(x.region());
    let launch = launch.read(rstd.region()).write(workspace.region());
    let launch = launch.u32(cut.rows).u32(cut.width).u32(cut.rows_per_run).u32(u32::from(cut.vector));
    launch.cost(gpu::bytes(&[dy, x]), 3 * dy.elements() as u64).launch(cut.grid(), gpu::THREADS)?;
    columns::finish(&FAMILY, workspace, 0, &cut, cut.width, weight)
}
