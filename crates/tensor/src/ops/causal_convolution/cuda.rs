//! Launches of `kernels/causal_convolution.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::operands::Operands;
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::columns::workspace;
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{DType, Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "causal_convolution",
    headers: ["activation.cuh", "columns.cuh", "rotary.cuh"],
    constants: columns::CONSTANTS,
);

/// Channels of a thread, if they are aligned.
const VECTOR: usize = 4;
/// Consecutive rows that a thread computes in passes with one output row per input row: as many as leave
/// [`FULL`] threads.
const RUN: std::ops::RangeInclusive<usize> = 8..=32;
/// Threads that fill a GPU twice.
const FULL: usize = 1 << 18;

pub(super) fn forward(
    operator: &'static str,
    x_blc: &Tensor,
    operands: Operands<'_>,
    y_blc: &Tensor,
) -> Result<()> {
    let call = Call { operator, name: "forward", x: x_blc, operands };
    call.launch_rows(&[x_blc], y_blc, [gpu::bytes(&[x_blc, y_blc]), 2])
}

pub(super) fn backward_input(
    operator: &'static str,
    dy_blc: &Tensor,
    x_blc: &Tensor,
    operands: Operands<'_>,
    dx_blc: &Tensor,
) -> Result<()> {
    let call = Call { operator, name: "backward", x: x_blc, operands };
    call.launch_rows(&[dy_blc, x_blc], dx_blc, [gpu::bytes(&[dy_blc, x_blc, dx_blc]), 4])
}

pub(super) fn backward_halo(
    operator: &'static str,
    dy_blc: &Tensor,
    x_blc: &Tensor,
    operands: Operands<'_>,
    dhalo: &Tensor,
) -> Result<()> {
    let call = Call { operator, name: "halo", x: x_blc, operands };
    let word = |size| gpu::word(operator, size);
    let [batch, time] = [x_blc.shape().dims()[0], x_blc.shape().dims()[1]];
    let (launch, vector) = call.begin(&[dy_blc, x_blc], &[dhalo]);
    let launch = launch.write(dhalo).u32(word(batch)?).u32(word(time)?).u32(word(x_blc.shape().columns())?);
    let launch = launch.u32(word(operands.weight.shape().columns())?);
    let launch = launch.u32(u32::from(operands.silu)).u32(u32::from(vector));
    let launch = launch.cost(gpu::bytes(&[dhalo, dhalo, dhalo]), 8 * dhalo.elements() as u64);
    Ok(launch.launch([call.blocks(batch, vector)?, 1, 1], gpu::THREADS)?)
}

/// Computes the gradients of weights and bias, with partial sums in `workspace`.
pub(super) fn backward_weight(
    operator: &'static str,
    dy_blc: &Tensor,
    x_blc: &Tensor,
    operands: Operands<'_>,
    workspace: &Tensor,
    [weight, bias]: [Option<&GradientTarget>; 2],
) -> Result<()> {
    let call = Call { operator, name: "weight_sums", x: x_blc, operands };
    let rows = x_blc.shape().rows();
    let runs = workspace::runs(rows);
    let read = [dy_blc, x_blc];
    call.launch(&read, workspace, (rows.div_ceil(runs), runs), [gpu::bytes(&read), 4])?;
    let channels = x_blc.shape().columns();
    let weights = channels * operands.weight.shape().columns();
    let stride = gpu::word(operator, weights + channels)?;
    for (target, [first, width]) in [(weight, [0, weights]), (bias, [weights, channels])] {
        let Some(target) = target else { continue };
        // A run beyond the rows has no partial sums.
        let cut = Cut::divide_sums(operator, rows.div_ceil(rows.div_ceil(runs)), width)?;
        columns::finish(&FAMILY, workspace, first * DType::F32.bytes(), &cut, stride, target)?;
    }
    Ok(())
}

pub(super) fn step(
    operator: &'static str,
    x_blc: &Tensor,
    operands: Operands<'_>,
    state: &Tensor,
    y_blc: &Tensor,
) -> Result<()> {
    let call = Call { operator, name: "step", x: x_blc, operands };
    let word = |size| gpu::word(operator, size);
    let rows = x_blc.shape().rows();
    let (launch, vector) = call.begin(&[x_blc], &[state, y_blc]);
    let launch = launch.write(state).write(y_blc);
    let launch = launch.u32(word(rows)?).u32(word(state.shape().dims()[0])?);
    let launch = launch.u32(word(x_blc.shape().columns())?).u32(word(operands.weight.shape().columns())?);
    let launch = launch.u32(u32::from(operands.silu)).u32(u32::from(vector));
    let launch = launch.cost(gpu::bytes(&[x_blc, state, state, y_blc]), 8 * x_blc.elements() as u64);
    Ok(launch.launch([call.blocks(rows, vector)?, 1, 1], gpu::THREADS)?)
}

/// A launch of one of the kernels.
struct Call<'a> {
    operator: &'static str,
    name: &'static str,
    x: &'a Tensor,
    operands: Operands<'a>,
}

impl<'a> Call<'a> {
    /// Begins a launch that reads `read` and the operands; returns whether threads have [`VECTOR`] channels.
    fn begin(&self, read: &[&Tensor], written: &[&Tensor]) -> (Launch<'a>, bool) {
        let Operands { weight, bias, documents, halo, .. } = self.operands;
        let is_whole = self.x.shape().columns().is_multiple_of(VECTOR);
        let others: Vec<&Tensor> = [weight].into_iter().chain(halo).collect();
        let is_aligned = gpu::aligned(read) && gpu::aligned(written) && gpu::aligned(&others);
        let vector = is_whole && is_aligned;
        let kernel = Function::new(&FAMILY, self.name).with_dtype(self.x.dtype());
        let launch = read.iter().fold(self.x.device().kernel(kernel), |launch, x| launch.read(*x));
        (launch.read(weight).read(bias).read(documents).read(halo), vector)
    }

    /// Returns the number of thread blocks for `runs` runs of rows.
    fn blocks(&self, runs: usize, vector: bool) -> Result<u32> {
        let vectors = self.x.shape().columns() / if vector { VECTOR } else { 1 };
        gpu::word(self.operator, (vectors * runs).div_ceil(gpu::THREADS as usize))
    }

    fn launch_rows(&self, read: &[&Tensor], written: &Tensor, cost: [u64; 2]) -> Result<()> {
        let rows_per_run = (self.x.elements() / VECTOR / FULL).clamp(*RUN.start(), *RUN.end());
        let runs = self.x.shape().rows().div_ceil(rows_per_run);
        self.launch(read, written, (rows_per_run, runs), cost)
    }

    /// Launches the kernel for `runs` runs of `rows_per_run` rows. `cost` is the bytes of memory, and the
    /// FLOPs of an element and tap.
    fn launch(
        &self,
        read: &[&Tensor],
        written: &Tensor,
        (rows_per_run, runs): (usize, usize),
        [bytes, flops]: [u64; 2],
    ) -> Result<()> {
        let word = |size| gpu::word(self.operator, size);
        let width = self.operands.weight.shape().columns();
        let (launch, vector) = self.begin(read, &[written]);
        let launch = launch.write(written).u32(word(self.x.shape().rows())?);
        let launch = launch.u32(word(self.x.shape().dims()[1])?).u32(word(self.x.shape().columns())?);
        let launch = launch.u32(word(width)?).u32(word(rows_per_run)?);
        let launch = launch.u32(u32::from(self.operands.silu)).u32(u32::from(vector));
        let launch = launch.cost(bytes, flops * (width * self.x.elements()) as u64);
        Ok(launch.launch([self.blocks(runs, vector)?, 1, 1], gpu::THREADS)?)
    }
}
