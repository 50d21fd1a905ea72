//! Launches of `kernels/batch_norm.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::output::{Affine, Passes, Saved};
use super::workspace;
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

/// Channels of a thread. More leave too few registers for the rows being loaded.
const WIDE: u32 = 4;
/// Bytes of each array that a thread loads before it uses the first value.
const FLIGHT_BYTES: u32 = 64;
/// Blocks that a multiprocessor holds at once.
const RESIDENT: u32 = 3;
/// Largest number of blocks of a launch: as many as an H200 holds at once. A constant, so that the order of
/// additions does not depend on the GPU.
const BLOCKS: u32 = 132 * RESIDENT;
/// Channels of a block that adds partial sums: one per warp.
const FINISHED: u32 = gpu::THREADS / 32;

pub(crate) static FAMILY: Family = family!(
    "batch_norm",
    headers: ["batch_norm.cuh"],
    constants: &[
        gpu::THREADS_CONSTANT,
        ("WIDE", WIDE),
        ("FLIGHT_BYTES", FLIGHT_BYTES),
        ("RESIDENT", RESIDENT)
    ],
);

/// Division of an array of pixels over thread blocks. A thread owns one vector of channels of some rows.
struct Grid {
    rows: u32,
    channels: u32,
    /// Whether a thread has [`WIDE`] channels instead of one.
    vector: bool,
    /// Vectors of channels side by side in a block, a power of two.
    lanes: u32,
    tiles: u32,
    /// Blocks of a tile of channels, which share its rows.
    blocks: u32,
    /// Blocks of a tile whose partial sums fit in the workspace.
    runs: u32,
}

impl Grid {
    fn divide(operator: &'static str, x: &Tensor, arrays: &[&Tensor]) -> Result<Self> {
        let rows = x.shape().rows();
        let channels = x.shape().columns();
        let vector = channels.is_multiple_of(WIDE as usize) && gpu::aligned(arrays);
        let vectors = gpu::word(operator, if vector { channels / WIDE as usize } else { channels })?;
        // The widest row of a block that leaves no lane idle, but at least 8 lanes.
        let lanes = [32, 16, 8].into_iter().find(|lanes| vectors.is_multiple_of(*lanes));
        let lanes = lanes.unwrap_or_else(|| vectors.next_power_of_two().min(32));
        let tiles = vectors.div_ceil(lanes);
        let in_flight = FLIGHT_BYTES / (WIDE * gpu::word(operator, x.dtype().bytes())?);
        let turns = gpu::word(operator, rows)?.div_ceil(gpu::THREADS / lanes * in_flight);
        let blocks = (BLOCKS / tiles).clamp(1, turns.max(1));
        Ok(Grid {
            rows: gpu::word(operator, rows)?,
            channels: gpu::word(operator, channels)?,
            vector,
            lanes,
            tiles,
            blocks,
            runs: blocks.min(gpu::word(operator, workspace::runs(rows, channels))?),
        })
    }

    fn arguments<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        launch.u32(self.rows).u32(self.channels).u32(self.lanes).u32(u32::from(self.vector))
    }

    /// Returns the blocks of a kernel that writes an array.
    fn array(&self) -> [u32; 3] {
        [self.blocks, self.tiles, 1]
    }

    /// Returns the blocks of a kernel that sums rows. Each block writes one partial sum.
    fn sums(&self) -> [u32; 3] {
        [self.runs, self.tiles, 1]
    }

    /// Returns the blocks of a kernel that adds the partial sums.
    fn finish(&self) -> [u32; 3] {
        [self.channels.div_ceil(FINISHED), 1, 1]
    }

    /// Returns the bytes of the partial sums.
    fn partial(&self) -> u64 {
        8 * u64::from(self.runs) * u64::from(self.channels)
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
    let grid = Grid::divide(operator, x, &[x])?;
    let device = x.device();
    let launch = device.kernel(Function::new(&FAMILY, "moments").with_dtype(x.dtype()));
    let launch = grid.arguments(launch.read(x).write(workspace));
    launch.cost(gpu::bytes(&[x]), 3 * x.elements() as u64).launch(grid.sums(), gpu::THREADS)?;
    let launch = device.kernel(Function::new(&FAMILY, "statistics").with_dtype(x.dtype()));
    let launch = launch.read(x).read(workspace).write(mean).write(rstd);
    let launch = launch.read(record).u32(grid.rows).u32(grid.channels).u32(grid.runs).f32(epsilon);
    Ok(launch.cost(grid.partial(), grid.partial() / 4).launch(grid.finish(), gpu::THREADS)?)
}

/// Computes y = relu((x − mean) · rstd · weight + bias + residual). With `running`, `spread` is the variance,
/// else rstd.
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
    let grid = Grid::divide(operator, x, &arrays)?;
    let launch = x.device().kernel(Function::new(&FAMILY, "apply").with_dtype(x.dtype()));
    let launch = launch.read(x).read(residual).read(weight).read(bias).read(mean).read(spread).write(y);
    let launch = grid.arguments(launch).f32(if running { epsilon } else { -1.0 }).u32(u32::from(relu));
    let moved = gpu::bytes(&[x, y]) + residual.map_or(0, |residual| residual.bytes() as u64);
    Ok(launch.cost(moved, 3 * x.elements() as u64).launch(grid.array(), gpu::THREADS)?)
}

/// Arrays of backward with the shape of `x`. `bias` is present if ReLU's mask is recomputed from it.
struct Arrays<'a> {
    read: Vec<&'a Tensor>,
    output: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
}

impl<'a> Arrays<'a> {
    fn from_saved(dy: &'a Tensor, saved: &Saved<'a>) -> Self {
        let (output, bias) = match saved.passes {
            Passes::Everywhere => (None, None),
            Passes::ByOutput(output) => (Some(output), None),
            Passes::ByInput { bias } => (None, Some(bias)),
        };
        Arrays { read: [saved.x, dy].into_iter().chain(output).collect(), output, bias }
    }

    /// Returns the division over blocks of a kernel that also writes `written`.
    fn grid(
        &self,
        operator: &'static str,
        saved: &Saved<'_>,
        weight: &Tensor,
        written: Option<&Tensor>,
    ) -> Result<Grid> {
        let channels = [saved.mean, saved.rstd, weight].into_iter().chain(self.bias);
        let all: Vec<_> = self.read.iter().copied().chain(written).chain(channels).collect();
        Grid::divide(operator, saved.x, &all)
    }

    /// Begins a launch with the operands that both kernels of backward share.
    fn operands<'l>(
        &self,
        kernel: &'static str,
        dy: &'l Tensor,
        saved: &Saved<'l>,
        weight: &'l Tensor,
    ) -> Launch<'l> {
        let Saved { x, mean, rstd, .. } = saved;
        let launch = x.device().kernel(Function::new(&FAMILY, kernel).with_dtype(x.dtype()));
        let launch = launch.read(dy).read(self.output).read(*x);
        launch.read(weight).read(self.bias).read(*mean).read(*rstd)
    }
}

/// Computes sums[0] = Σ g · (x − mean) · rstd and sums[1] = Σ g, where g is `dy` masked by ReLU. Also writes
/// g to `masked`, which may be `dy`. Partial sums are in `workspace`.
pub(super) fn sums(
    operator: &'static str,
    dy: &Tensor,
    saved: Saved<'_>,
    weight: &Tensor,
    masked: Option<&Tensor>,
    sums: &Tensor,
    workspace: &Tensor,
) -> Result<()> {
    let arrays = Arrays::from_saved(dy, &saved);
    let grid = arrays.grid(operator, &saved, weight, masked)?;
    let launch = arrays.operands("gradient_sums", dy, &saved, weight).read(masked);
    let launch = grid.arguments(launch.write(workspace));
    let moved = gpu::bytes(&arrays.read) + masked.map_or(0, |masked| masked.bytes() as u64);
    launch.cost(moved, 5 * saved.x.elements() as u64).launch(grid.sums(), gpu::THREADS)?;
    let launch = sums.device().kernel(Function::new(&FAMILY, "finish_gradient_sums"));
    let launch = launch.read(workspace).read(saved.rstd).write(sums).u32(grid.channels).u32(grid.runs);
    Ok(launch.cost(grid.partial(), grid.partial() / 4).launch(grid.finish(), gpu::THREADS)?)
}

/// Computes dx = weight · rstd · (g − sums[1] / rows − (x − mean) · rstd · sums[0] / rows). `dx` may be `dy`.
pub(super) fn input_gradient(
    operator: &'static str,
    dy: &Tensor,
    saved: Saved<'_>,
    weight: &Tensor,
    sums: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let arrays = Arrays::from_saved(dy, &saved);
    let grid = arrays.grid(operator, &saved, weight, Some(dx))?;
    let launch = arrays.operands("input_gradient", dy, &saved, weight);
    let launch = grid.arguments(launch.read(sums).write(dx));
    let moved = gpu::bytes(&arrays.read) + dx.bytes() as u64;
    Ok(launch.cost(moved, 7 * dx.elements() as u64).launch(grid.array(), gpu::THREADS)?)
}

/// Adds the gradients of weight and bias to their targets, or overwrites these.
pub(super) fn give(
    operator: &'static str,
    sums: &Tensor,
    weight: &GradientTarget,
    bias: &GradientTarget,
) -> Result<()> {
    let channels = gpu::word(operator, sums.shape().columns())?;
    let launch = sums.device().kernel(Function::new(&FAMILY, "add_sums").with_dtype(weight.tensor.dtype()));
    let launch = launch.read(sums).write(&weight.tensor).write(&bias.tensor);
    let launch = launch.u32(channels).u32(u32::from(weight.accumulate)).u32(u32::from(bias.accumulate));
    let moved = gpu::bytes(&[sums]) + weight.moved() + bias.moved();
    let blocks = [channels.div_ceil(gpu::THREADS), 1, 1];
    Ok(launch.cost(moved, sums.elements() as u64).launch(blocks, gpu::THREADS)?)
}
