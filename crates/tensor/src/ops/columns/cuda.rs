//! Launches of `kernels/columns.cu`.

use device::kernels::COLUMNS;
use device::{DType, workspace};

use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

/// Vectors of columns of one block.
const TILE: usize = 32;

/// How a matrix is cut into blocks.
struct Cut {
    rows: u32,
    width: u32,
    runs: u32,
    rows_per_run: u32,
    tiles: u32,
    vector: bool,
}

impl Cut {
    fn of(operator: &'static str, matrix: &Tensor, aligned: bool) -> Result<Self> {
        let (rows, width) = (matrix.shape().rows(), matrix.shape().columns());
        let lanes = gpu::lanes(matrix.dtype());
        let vector = aligned && width.is_multiple_of(lanes);
        let vectors = if vector { width / lanes } else { width };
        let runs = workspace::column_runs(rows);
        Ok(Cut {
            rows: gpu::word(operator, rows)?,
            width: gpu::word(operator, width)?,
            runs: gpu::word(operator, runs)?,
            rows_per_run: gpu::word(operator, rows.div_ceil(runs))?,
            tiles: gpu::word(operator, vectors.div_ceil(TILE))?,
            vector,
        })
    }

    fn grid(&self) -> [u32; 3] {
        [self.runs, self.tiles, 1]
    }
}

/// bias (+)= Σ over rows of dy, by way of `scratch`.
pub(crate) fn sum_rows(
    operator: &'static str,
    dy: &Tensor,
    scratch: &Tensor,
    bias: &GradientTarget,
) -> Result<()> {
    let cut = Cut::of(operator, dy, gpu::aligned(&[dy]))?;
    let kernel = gpu::kernel(&COLUMNS, ["column_sums_f32", "column_sums_bf16"], dy.dtype());
    let launch = dy.device().kernel(kernel).read(dy.region()).write(scratch.region());
    let launch = launch.u32(cut.rows).u32(cut.width).u32(cut.rows_per_run).u32(u32::from(cut.vector));
    let cost = dy.bytes() as u64;
    launch.cost(cost, dy.elements() as u64).launch(cut.grid(), gpu::THREADS)?;
    finish(scratch, 0, &cut, cut.width, bias)
}

/// What a layer norm's backward pass knows of its forward pass.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub(crate) x: &'a Tensor,
    pub(crate) mean: &'a Tensor,
    pub(crate) rstd: &'a Tensor,
}

/// gamma (+)= Σ over rows of dy · (x − mean) · rstd and beta (+)= Σ over rows of dy, by way of `scratch`.
pub(crate) fn layer_norm(
    operator: &'static str,
    dy: &Tensor,
    saved: Saved<'_>,
    scratch: &Tensor,
    [gamma, beta]: [&GradientTarget; 2],
) -> Result<()> {
    let Saved { x, mean, rstd } = saved;
    let cut = Cut::of(operator, dy, gpu::aligned(&[dy, x]))?;
    let kernel = gpu::kernel(&COLUMNS, ["layer_norm_sums_f32", "layer_norm_sums_bf16"], dy.dtype());
    let launch = dy.device().kernel(kernel).read(dy.region()).read(x.region());
    let launch = launch.read(mean.region()).read(rstd.region()).write(scratch.region());
    let launch = launch.u32(cut.rows).u32(cut.width).u32(cut.rows_per_run).u32(u32::from(cut.vector));
    launch.cost(gpu::bytes(&[dy, x]), 4 * dy.elements() as u64).launch(cut.grid(), gpu::THREADS)?;
    let width = DType::F32.bytes() * gamma.tensor.elements();
    finish(scratch, 0, &cut, 2 * cut.width, gamma)?;
    finish(scratch, width, &cut, 2 * cut.width, beta)
}

/// The second pass: partial sums from byte `offset` of `scratch` on, a run's `stride` elements apart.
fn finish(scratch: &Tensor, offset: usize, cut: &Cut, stride: u32, target: &GradientTarget) -> Result<()> {
    let region = scratch.region();
    let kernel = gpu::kernel(&COLUMNS, ["columns_finish_f32", "columns_finish_bf16"], target.tensor.dtype());
    let launch = scratch.device().kernel(kernel);
    let launch = launch.read(region.part(offset, region.bytes - offset)).write(target.tensor.region());
    let launch = launch.u32(cut.runs).u32(cut.width).u32(stride).u32(u32::from(target.accumulate));
    let read = 4 * u64::from(cut.runs) * u64::from(cut.width);
    let launch = launch.cost(read + target.tensor.bytes() as u64, read / 4);
    Ok(launch.launch([cut.width.div_ceil(TILE as u32), 1, 1], gpu::THREADS)?)
}
