//! Launches of `kernels/layer_norm.cu`.

use device::{DType, Family, Function};

use super::output::Output;
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::held_rows::form;
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

/// `kernels/layer_norm.cu`.
pub(crate) static FAMILY: Family =
    family!("layer_norm", headers: ["columns.cuh", "held_rows.cuh"], constants: columns::CONSTANTS);

/// Parameters of the layer.
#[derive(Clone, Copy)]
pub(super) struct Affine<'a> {
    pub(super) weight: &'a Tensor,
    pub(super) bias: Option<&'a Tensor>,
    pub(super) epsilon: f32,
}

/// Tensors saved by the forward pass.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a> {
    pub(super) x: &'a Tensor,
    pub(super) mean: &'a Tensor,
    pub(super) rstd: &'a Tensor,
}

/// Normalises the rows of `x`; with `residual` (branch, sum), stores x + branch in `sum` and normalises its
/// rows.
pub(super) fn forward(
    operator: &'static str,
    x: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    affine: Affine<'_>,
    made: &Output,
) -> Result<()> {
    let Affine { weight, bias, epsilon } = affine;
    let (rows, width) = (x.shape().rows(), x.shape().columns());
    let more: Vec<&Tensor> = residual.iter().flat_map(|(branch, sum)| [*branch, *sum]).collect();
    let parameters: Vec<&Tensor> = std::iter::once(weight).chain(bias).collect();
    let aligned = gpu::aligned(&[x, &made.output]) && gpu::aligned(&parameters) && gpu::aligned(&more);
    let form = form(width, x.dtype(), aligned);
    let mut launch = x.device().kernel(Function::new(&FAMILY, form.forward).of(x.dtype())).read(x.region());
    launch = match residual {
        Some((branch, _)) => launch.read(branch.region()),
        None => launch.null(),
    };
    launch = launch.read(weight.region());
    launch = match bias {
        Some(bias) => launch.read(bias.region()),
        None => launch.null(),
    };
    launch = match residual {
        Some((_, sum)) => launch.write(sum.region()),
        None => launch.null(),
    };
    launch = launch.write(made.output.region()).write(made.mean.region()).write(made.rstd.region());
    launch = launch.u32(gpu::word(operator, rows)?).u32(gpu::word(operator, width)?).f32(epsilon);
    let bytes = gpu::bytes(&[x, &made.output, &made.mean, &made.rstd]) + gpu::bytes(&more);
    let blocks = gpu::word(operator, rows.div_ceil(form.rows_per_block))?;
    Ok(launch.cost(bytes, 8 * x.elements() as u64).launch([blocks, 1, 1], gpu::THREADS)?)
}

/// Computes the input's gradient, plus `dsum`.
pub(super) fn backward_input(
    operator: &'static str,
    dy: &Tensor,
    dsum: Option<&Tensor>,
    saved: Saved<'_>,
    weight: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let Saved { x, mean, rstd } = saved;
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
    launch = launch.read(x.region()).read(weight.region()).read(mean.region()).read(rstd.region());
    launch = launch.write(dx.region()).u32(gpu::word(operator, rows)?).u32(gpu::word(operator, width)?);
    let bytes = gpu::bytes(&[dy, x, dx, mean, rstd]) + gpu::bytes(&more);
    let blocks = gpu::word(operator, rows.div_ceil(form.rows_per_block))?;
    Ok(launch.cost(bytes, 12 * x.elements() as u64).launch([blocks, 1, 1], gpu::THREADS)?)
}

/// weight (+)= Σ over rows of dy · (x − mean) · rstd and bias (+)= Σ over rows of dy, with partial sums in
/// `workspace`.
pub(super) fn backward_weight(
    operator: &'static str,
    dy: &Tensor,
    saved: Saved<'_>,
    workspace: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    let Saved { x, mean, rstd } = saved;
    let cut = Cut::of(operator, dy, gpu::aligned(&[dy, x]))?;
    let kernel = Function::new(&FAMILY, "weight_sums").of(dy.dtype());
    let launch = dy.device().kernel(kernel).read(dy.region()).read(x.region());
    let launch = launch.read(mean.region()).read(rstd.region()).write(workspace.region());
    let launch = launch.u32(cut.rows).u32(cut.width).u32(cut.rows_per_run).u32(u32::from(cut.vector));
    launch.cost(gpu::bytes(&[dy, x]), 4 * dy.elements() as u64).launch(cut.grid(), gpu::THREADS)?;
    let width = DType::F32.bytes() * weight.tensor.elements();
    columns::finish(&FAMILY, workspace, 0, &cut, 2 * cut.width, weight)?;
    match bias {
        Some(bias) => columns::finish(&FAMILY, workspace, width, &cut, 2 * cut.width, bias),
        None => Ok(()),
    }
}
