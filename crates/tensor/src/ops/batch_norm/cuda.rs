//! Launches of `kernels/batch_norm.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::{Affine, Saved, workspace};
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

/// Rows of a thread in the kernels that write an array.
const ROWS: u32 = 16;

/// `kernels/batch_norm.cu`.
pub(crate) static FAMILY: Family = family!(
    "batch_norm",
    headers: ["columns.cuh"],
    constants: &[gpu::THREADS_CONSTANT, columns::CONSTANTS[1], ("ROWS", ROWS)],
);

/// The division of an array of pixels over blocks: a thread owns one vector of channels of some rows.
struct Grid {
    rows: u32,
    channels: u32,
    /// Whether a thread reads 16 bytes at once.
    vector: bool,
    /// Vectors of channels side by side in a block, a power of two.
    lanes: u32,
    tiles: u32,
    runs: u32,
}

impl Grid {
    fn of(operator: &'static str, x: &Tensor, arrays: &[&Tensor]) -> Result<Self> {
        let (rows, channels) = (x.shape().rows(), x.shape().columns());
        let vector = channels.is_multiple_of(gpu::lanes(x.dtype())) && gpu::aligned(arrays);
        let vectors = if vector { channels / gpu::lanes(x.dtype()) } else { channels };
        let vectors = gpu::word(operator, vectors)?;
        // The widest row of a block that leaves no lane idle, but at least 8 lanes.
        let lanes = [32, 16, 8].into_iter().find(|lanes| vectors.is_multiple_of(*lanes));
        let lanes = lanes.unwrap_or_else(|| vectors.next_power_of_two().min(32));
        Ok(Grid {
            rows: gpu::word(operator, rows)?,
            channels: gpu::word(operator, channels)?,
            vector,
            lanes,
            tiles: vectors.div_ceil(lanes),
            runs: gpu::word(operator, workspace::runs(rows, channels))?,
        })
    }

    fn arguments<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        launch.u32(self.rows).u32(self.channels).u32(self.lanes).u32(u32::from(self.vector))
    }

    /// Rows of each run of a sum.
    fn rows_per_run(&self) -> u32 {
        self.rows.div_ceil(self.runs)
    }

    /// Blocks of a sum.
    fn sums(&self) -> [u32; 3] {
        [self.runs, self.tiles, 1]
    }

    /// Blocks of a kernel that writes an array.
    fn array(&self) -> [u32; 3] {
        [self.rows.div_ceil(gpu::THREADS / self.lanes * ROWS), self.tiles, 1]
    }
}

fn optional<'a>(launch: Launch<'a>, tensor: Option<&Tensor>) -> Launch<'a> {
    match tensor {
        Some(tensor) => launch.read(tensor.region()),
        None => launch.null(),
    }
}

/// Computes mean and rstd of each channel, and mean and unbiased variance for `record`.
pub(super) fn statistics(
    operator: &'static str,
    x: &Tensor,
    [mean, rstd]: [&Tensor; 2],
    epsilon: f32,
    record: Option<&Tensor>,
    workspace: &Tensor,
) -> Result<()> {
    let (grid, device) = (Grid::of(operator, x, &[x])?, x.device());
    let launch = device.kernel(Function::new(&FAMILY, "moments").of(x.dtype()));
    let launch = grid.arguments(launch.read(x.region()).write(workspace.region()));
    let launch = launch.u32(grid.rows_per_run()).cost(gpu::bytes(&[x]), 3 * x.elements() as u64);
    launch.launch(grid.sums(), gpu::THREADS)?;
    let launch = device.kernel(Function::new(&FAMILY, "statistics").of(x.dtype()));
    let launch = launch.read(x.region()).read(workspace.region());
    let launch = launch.write(mean.region()).write(rstd.region());
    let launch = optional(launch, record).u32(grid.rows).u32(grid.channels).u32(grid.runs).f32(epsilon);
    let sums = 8 * u64::from(grid.runs) * u64::from(grid.channels);
    let blocks = [grid.channels.div_ceil(columns::CONSTANTS[1].1), 1, 1];
    Ok(launch.cost(sums, sums / 4).launch(blocks, gpu::THREADS)?)
}

/// y = relu((x − mean) · rstd · weight + bias + residual); with `running`, `spread` is a variance instead of
/// rstd.
pub(super) fn apply(
    operator: &'static str,
    x: &Tensor,
    residual: Option<&Tensor>,
    affine: Affine<'_>,
    [mean, spread]: [&Tensor; 2],
    running: bool,
    y: &Tensor,
) -> Result<()> {
    let Affine { weight, bias, epsilon, relu } = affine;
    let arrays: Vec<_> = [x, y, weight, bias, mean, spread].into_iter().chain(residual).collect();
    let grid = Grid::of(operator, x, &arrays)?;
    let launch = x.device().kernel(Function::new(&FAMILY, "apply").of(x.dtype()));
    let launch = optional(launch.read(x.region()), residual).read(weight.region()).read(bias.region());
    let launch = launch.read(mean.region()).read(spread.region()).write(y.region());
    let launch = grid.arguments(launch).f32(if running { epsilon } else { -1.0 }).u32(u32::from(relu));
    let moved = gpu::bytes(&[x, y]) + residual.map_or(0, |residual| residual.bytes() as u64);
    Ok(launch.cost(moved, 3 * x.elements() as u64).launch(grid.array(), gpu::THREADS)?)
}

/// As on the host, with partial sums in `workspace`.
pub(super) fn sums(
    operator: &'static str,
    dy: &Tensor,
    saved: Saved<'_>,
    masked: Option<&Tensor>,
    sums: &Tensor,
    workspace: &Tensor,
) -> Result<()> {
    let Saved { x, output, mean, rstd } = saved;
    let arrays: Vec<_> = [x, dy].into_iter().chain(output).chain(masked).collect();
    let aligned: Vec<_> = arrays.iter().copied().chain([mean, rstd]).collect();
    let grid = Grid::of(operator, x, &aligned)?;
    let launch = x.device().kernel(Function::new(&FAMILY, "gradient_sums").of(x.dtype()));
    let launch = optional(launch.read(dy.region()), output).read(x.region());
    let launch = optional(launch.read(mean.region()).read(rstd.region()), masked);
    let launch = grid.arguments(launch.write(workspace.region())).u32(grid.rows_per_run());
    launch.cost(gpu::bytes(&arrays), 5 * x.elements() as u64).launch(grid.sums(), gpu::THREADS)?;
    let width = 2 * x.shape().columns();
    let cut = Cut::of_sums(operator, grid.runs as usize, width)?;
    let target = GradientTarget { tensor: sums.clone(), accumulate: false };
    columns::finish(&FAMILY, workspace, 0, &cut, cut.width, &target)
}

/// As on the host.
pub(super) fn input_gradient(
    operator: &'static str,
    dy: &Tensor,
    saved: Saved<'_>,
    weight: &Tensor,
    sums: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let Saved { x, output, mean, rstd } = saved;
    let arrays: Vec<_> = [x, dy, dx].into_iter().chain(output).collect();
    let aligned: Vec<_> = arrays.iter().copied().chain([weight, mean, rstd, sums]).collect();
    let grid = Grid::of(operator, x, &aligned)?;
    let launch = x.device().kernel(Function::new(&FAMILY, "input_gradient").of(x.dtype()));
    let launch = optional(launch.read(dy.region()), output).read(x.region()).read(weight.region());
    let launch = launch.read(mean.region()).read(rstd.region()).read(sums.region()).write(dx.region());
    let launch = grid.arguments(launch);
    Ok(launch.cost(gpu::bytes(&arrays), 7 * x.elements() as u64).launch(grid.array(), gpu::THREADS)?)
}

/// target (+)= sum, rounded once.
pub(super) fn give(operator: &'static str, sum: &Tensor, target: &GradientTarget) -> Result<()> {
    let cut = Cut::of_sums(operator, 1, sum.elements())?;
    columns::finish(&FAMILY, sum, 0, &cut, cut.width, target)
}
