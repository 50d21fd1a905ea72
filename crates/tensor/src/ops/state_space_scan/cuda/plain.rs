//! Launches of the kernels in f32, `kernels/state_space_scan.cu`.

use device::cuda::Launch;
use device::{Family, Function, Region};

use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::kernels::family;
use crate::ops::state_space_scan::heads::{CHUNK, StateHeads};
use crate::ops::state_space_scan::operands::{Gradients, Operands};
use crate::ops::state_space_scan::workspace::{PlainSizes, regions};
use crate::ops::{GradientTarget, gpu};
use crate::{DType, Result, Tensor};

const CONSTANTS: &[(&str, u32)] = &[gpu::THREADS_CONSTANT, ("TILE", columns::TILE), ("CHUNK", CHUNK as u32)];

pub(crate) static FAMILY: Family = family!(
    "state_space_scan",
    headers: ["columns.cuh", "slabs.cuh", "state_space_steps.cuh"],
    constants: CONSTANTS,
);

pub(super) fn forward(
    operator: &'static str,
    operands: Operands<'_>,
    state: Option<&Tensor>,
    workspace: &Tensor,
    y_blc: &Tensor,
) -> Result<()> {
    let call = Call { operator, operands, sizes: PlainSizes::new(&operands) };
    let [states, kept, ..] = call.regions(workspace);
    call.entering(state, states, kept)?;
    let Operands { d, bias, documents, .. } = operands;
    let launch = call.kernel("outputs", None).read(d).read(bias).read(documents).read(states);
    let StateHeads { heads, width, .. } = operands.heads;
    let rows = operands.xbc.shape().rows();
    let flops = (2 * rows * heads * (CHUNK * (width + operands.heads.states))) as u64;
    let launch = call.sizes(launch.write(y_blc))?;
    let launch = launch.cost(gpu::bytes(&[operands.xbc, y_blc]) + states.bytes as u64, flops);
    Ok(launch.launch(call.grid()?, gpu::THREADS)?)
}

/// Moves `state` on.
pub(super) fn advance(
    operator: &'static str,
    operands: Operands<'_>,
    state: &Tensor,
    workspace: &Tensor,
) -> Result<()> {
    let call = Call { operator, operands, sizes: PlainSizes::new(&operands) };
    let [states, kept, ..] = call.regions(workspace);
    call.entering(Some(state), states, kept)
}

/// Moves `gradient`, of the states after the last token, back to the first.
pub(super) fn retreat(
    operator: &'static str,
    dy_blc: &Tensor,
    operands: Operands<'_>,
    workspace: &Tensor,
    gradient: &Tensor,
) -> Result<()> {
    let call = Call { operator, operands, sizes: PlainSizes::new(&operands) };
    let [entering, kept, leaving, _] = call.regions(workspace);
    call.entering(None, entering, kept)?;
    call.leaving(dy_blc, Some(gradient), leaving, kept)
}

pub(super) fn backward_input(
    operator: &'static str,
    (dy_blc, ends): (&Tensor, Option<[&Tensor; 2]>),
    operands: Operands<'_>,
    workspace: &Tensor,
    result: &Gradients,
) -> Result<()> {
    let call = Call { operator, operands, sizes: PlainSizes::new(&operands) };
    let [entering, kept, leaving, parts] = call.regions(workspace);
    let [first, last] = [0, 1].map(|part| ends.map(|ends| ends[part]));
    call.entering(first, entering, kept)?;
    call.leaving(dy_blc, last, leaving, kept)?;
    let Operands { xbc, d, bias, documents, .. } = operands;
    let StateHeads { heads, groups, width, states } = operands.heads;
    let word = |size| gpu::word(operator, size);
    let rows = xbc.shape().rows();
    let products = call.products();

    let launch = call.kernel("gradients", Some(dy_blc)).read(d).read(bias).read(documents);
    let launch = launch.read(entering).read(leaving).write(&result.xbc).write(&result.dt);
    let launch = call.sizes(launch.write(parts).write(&result.sums))?;
    let bytes = gpu::bytes(&[xbc, dy_blc, &result.xbc]) + 2 * entering.bytes as u64 + parts.bytes as u64;
    let flops = 5 * products + (6 * rows * heads * CHUNK * (width + states)) as u64;
    launch.cost(bytes, flops).launch(call.grid()?, gpu::THREADS)?;

    let kernel = Function::new(&FAMILY, "heads").with_dtype(xbc.dtype());
    let launch = xbc.device().kernel(kernel).read(parts).write(&result.xbc).u32(word(rows)?);
    let launch = launch.u32(word(heads)?).u32(word(groups)?).u32(word(width)?).u32(word(states)?);
    let launch = launch.cost(parts.bytes as u64, call.sizes.heads as u64 / 4);
    let blocks = (rows * 2 * groups * states).div_ceil(gpu::THREADS as usize);
    Ok(launch.launch([word(blocks)?, 1, 1], gpu::THREADS)?)
}

pub(crate) fn backward_weight(
    operator: &'static str,
    sums: &Tensor,
    targets: [Option<&GradientTarget>; 3],
) -> Result<()> {
    let heads = sums.shape().columns() / 3;
    let cut = Cut::divide_sums(operator, sums.shape().rows(), heads)?;
    for (part, target) in targets.into_iter().enumerate() {
        let Some(target) = target else { continue };
        columns::finish(&FAMILY, sums, part * heads * DType::F32.bytes(), &cut, 3 * cut.width, target)?;
    }
    Ok(())
}

/// The launches of one call.
struct Call<'a> {
    operator: &'static str,
    operands: Operands<'a>,
    sizes: PlainSizes,
}

impl<'a> Call<'a> {
    /// Returns the arrays of a workspace: entering states, their factors, gradients of leaving states, and
    /// gradients of B and C by head. The last two are empty in the forward pass.
    fn regions<'w>(&self, workspace: &'w Tensor) -> [Region<'w>; 4] {
        let PlainSizes { states, kept, heads } = self.sizes;
        regions(workspace, [states, kept, states, heads])
    }

    /// Begins a launch with the operands that every kernel of chunks reads.
    fn kernel(&self, name: &'static str, dy_blc: Option<&Tensor>) -> Launch<'a> {
        let Operands { xbc, dt, a_log, .. } = self.operands;
        let launch = xbc.device().kernel(Function::new(&FAMILY, name).with_dtype(xbc.dtype()));
        let launch = dy_blc.into_iter().fold(launch, |launch, dy_blc| launch.read(dy_blc));
        launch.read(xbc).read(dt).read(a_log)
    }

    /// Adds the sizes and limits to a launch.
    fn sizes<'l>(&self, launch: Launch<'l>) -> Result<Launch<'l>> {
        let word = |size| gpu::word(self.operator, size);
        let StateHeads { heads, groups, width, states } = self.operands.heads;
        let [low, high] = self.operands.limits;
        let launch = launch.u32(word(self.operands.xbc.shape().dims()[1])?).u32(word(heads)?);
        let launch = launch.u32(word(groups)?).u32(word(width)?).u32(word(states)?);
        Ok(launch.u32(word(self.operands.chunks())?).f32(low).f32(high))
    }

    /// Returns the grid of kernels with a block for each head of each chunk.
    fn grid(&self) -> Result<[u32; 3]> {
        let word = |size| gpu::word(self.operator, size);
        let batch = self.operands.xbc.shape().dims()[0];
        Ok([word(self.operands.chunks())?, word(self.operands.heads.heads)?, word(batch)?])
    }

    /// Returns the grid of kernels with a thread for each element of a sequence's states.
    fn elements_grid(&self) -> Result<[u32; 3]> {
        let word = |size| gpu::word(self.operator, size);
        let StateHeads { heads, width, states, .. } = self.operands.heads;
        let blocks = (heads * width * states).div_ceil(gpu::THREADS as usize);
        Ok([word(blocks)?, word(self.operands.xbc.shape().dims()[0])?, 1])
    }

    /// Returns the FLOPs of a product of every token with a state.
    fn products(&self) -> u64 {
        let StateHeads { heads, width, states, .. } = self.operands.heads;
        2 * (self.operands.xbc.shape().rows() * heads * states * width) as u64
    }

    /// Computes the gradients of the states that leave chunks, and moves `gradient` back.
    fn leaving(
        &self,
        dy_blc: &Tensor,
        gradient: Option<&Tensor>,
        leaving: Region<'_>,
        kept: Region<'_>,
    ) -> Result<()> {
        let Operands { xbc, bias, documents, .. } = self.operands;
        let StateHeads { heads, width, states, .. } = self.operands.heads;
        let word = |size| gpu::word(self.operator, size);
        let launch = self.kernel("sums_back", Some(dy_blc)).read(bias).read(documents).write(leaving);
        let bytes = gpu::bytes(&[xbc, dy_blc]) + leaving.bytes as u64;
        self.sizes(launch)?.cost(bytes, self.products()).launch(self.grid()?, gpu::THREADS)?;
        let slots = gradient.map_or(0, |gradient| gradient.shape().dims()[0]);
        let launch = xbc.device().kernel(Function::new(&FAMILY, "chunks_back")).write(leaving).read(kept);
        let launch = launch.write(gradient).u32(word(slots)?);
        let launch = launch.u32(word(heads)?).u32(word(states * width)?);
        let launch = launch.u32(word(self.operands.chunks())?);
        let launch = launch.cost(2 * leaving.bytes as u64, self.sizes.states as u64 / 2);
        Ok(launch.launch(self.elements_grid()?, gpu::THREADS)?)
    }

    /// Computes the states that enter chunks, and moves `state` on.
    fn entering(&self, state: Option<&Tensor>, states: Region<'_>, kept: Region<'_>) -> Result<()> {
        let Operands { xbc, bias, documents, .. } = self.operands;
        let StateHeads { heads, width, states: rows_of_state, .. } = self.operands.heads;
        let word = |size| gpu::word(self.operator, size);
        let launch = self.kernel("sums", None).read(bias).read(documents).write(states).write(kept);
        let flops = 2 * (xbc.shape().rows() * heads * width * rows_of_state) as u64;
        let launch = self.sizes(launch)?.cost(gpu::bytes(&[xbc]) + states.bytes as u64, flops);
        launch.launch(self.grid()?, gpu::THREADS)?;
        let slots = state.map_or(0, |state| state.shape().dims()[0]);
        let launch = xbc.device().kernel(Function::new(&FAMILY, "chunks")).write(states).read(kept);
        let launch = launch.write(state).u32(word(slots)?).u32(u32::from(documents.is_some()));
        let launch = launch.u32(word(heads)?).u32(word(rows_of_state * width)?);
        let launch = launch.u32(word(self.operands.chunks())?);
        let launch = launch.cost(2 * states.bytes as u64, self.sizes.states as u64 / 2);
        Ok(launch.launch(self.elements_grid()?, gpu::THREADS)?)
    }
}
