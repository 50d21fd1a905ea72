//! Launches of the kernels of `kernels/columns.cuh`.

use device::{Family, Function};

use super::workspace;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

/// Column vectors per block.
pub(crate) const TILE: u32 = 32;
/// Constants with which the kernels are compiled.
pub(crate) const CONSTANTS: &[(&str, u32)] = &[gpu::THREADS_CONSTANT, ("TILE", TILE)];

/// Constants of kernels that also measure largest magnitudes.
pub(crate) const MEASURING_CONSTANTS: &[(&str, u32)] =
    &[gpu::THREADS_CONSTANT, ("TILE", TILE), gpu::CELLS_CONSTANT];

/// Division of a matrix over thread blocks.
pub(crate) struct Cut {
    pub(crate) rows: u32,
    pub(crate) width: u32,
    pub(crate) runs: u32,
    pub(crate) rows_per_run: u32,
    /// Blocks in a row of the grid.
    pub(crate) tiles: u32,
    /// Whether a thread reads 16 bytes of a row at once.
    pub(crate) vector: bool,
}

impl Cut {
    pub(crate) fn divide(operator: &'static str, matrix: &Tensor, aligned: bool) -> Result<Self> {
        let rows = matrix.shape().rows();
        let width = matrix.shape().columns();
        let lanes = gpu::lanes(matrix.dtype());
        let vector = aligned && width.is_multiple_of(lanes);
        let vectors = if vector { width / lanes } else { width };
        let runs = workspace::runs(rows);
        Ok(Cut {
            rows: gpu::word(operator, rows)?,
            width: gpu::word(operator, width)?,
            runs: gpu::word(operator, runs)?,
            rows_per_run: gpu::word(operator, rows.div_ceil(runs))?,
            tiles: gpu::word(operator, vectors.div_ceil(TILE as usize))?,
            vector,
        })
    }

    /// Returns the grid over `runs` rows of partial sums, each with `width` columns.
    pub(crate) fn divide_sums(operator: &'static str, runs: usize, width: usize) -> Result<Self> {
        let runs = gpu::word(operator, runs)?;
        let width = gpu::word(operator, width)?;
        Ok(Cut { rows: runs, width, runs, rows_per_run: 1, tiles: width.div_ceil(TILE), vector: false })
    }

    pub(crate) fn grid(&self) -> [u32; 3] {
        [self.runs, self.tiles, 1]
    }
}

/// Launches the second pass, which adds the partial sums of all runs. They begin at byte `offset` of
/// `workspace` and are `stride` elements apart. Every family that includes the header has this kernel.
pub(crate) fn finish(
    family: &'static Family,
    workspace: &Tensor,
    offset: usize,
    cut: &Cut,
    stride: u32,
    target: &GradientTarget,
) -> Result<()> {
    let region = workspace.region();
    let kernel = Function::new(family, "columns_finish").with_dtype(target.tensor.dtype());
    let launch = workspace.device().kernel(kernel);
    let launch = launch.read(region.part(offset, region.bytes - offset)).write(&target.tensor);
    let launch = launch.u32(cut.runs).u32(cut.width).u32(stride).u32(u32::from(target.accumulate));
    let read = 4 * u64::from(cut.runs) * u64::from(cut.width);
    let launch = launch.cost(read + target.moved(), read / 4);
    Ok(launch.launch([cut.width.div_ceil(TILE), 1, 1], gpu::THREADS)?)
}
