//! Launches of the kernels in f32, `kernels/gated_delta_rule.cu` and `kernels/gated_delta_rule_backward.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::launch::{CONSTANTS, FAMILY, check_width, sized, view};
use crate::ops::gated_delta_rule::operands::{CHUNK, DeltaHeads, Geometry, Gradients, Operands};
use crate::ops::gated_delta_rule::workspace::PlainArrays;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Columns of a strip of states.
const STRIP: usize = 16;
/// Threads of a warp.
const WARP: usize = 32;

pub(crate) static FAMILY_BACKWARD: Family = family!(
    "gated_delta_rule_backward",
    headers: ["gated_delta_rule.cuh", "recurrent_chunk.cuh", "slabs.cuh"],
    constants: CONSTANTS
);

/// Arrays of the workspace of the forward pass.
struct Arrays {
    queries: Tensor,
    keys: Tensor,
    sums: Tensor,
    x: Tensor,
    weights: Tensor,
    states: Tensor,
}

impl Arrays {
    fn new(workspace: &Tensor, ranges: PlainArrays) -> Result<Self> {
        Ok(Arrays {
            queries: view(workspace, ranges.queries)?,
            keys: view(workspace, ranges.keys)?,
            sums: view(workspace, ranges.sums)?,
            x: view(workspace, ranges.x)?,
            weights: view(workspace, ranges.weights)?,
            states: view(workspace, ranges.states)?,
        })
    }
}

/// A call of the operator on a GPU.
struct Call<'a> {
    operator: &'static str,
    operands: &'a Operands<'a>,
    geometry: &'a Geometry,
    arrays: Arrays,
}

impl<'a> Call<'a> {
    fn new(
        operator: &'static str,
        operands: &'a Operands<'a>,
        geometry: &'a Geometry,
        workspace: &Tensor,
    ) -> Result<Self> {
        check_width(operator, operands.qkv, geometry)?;
        Ok(Call { operator, operands, geometry, arrays: Arrays::new(workspace, PlainArrays::new(geometry))? })
    }

    fn typed(&self, family: &'static Family, name: &'static str) -> Launch<'a> {
        let qkv = self.operands.qkv;
        qkv.device().kernel(Function::new(family, name).with_dtype(qkv.dtype()))
    }

    fn single(&self, name: &'static str) -> Launch<'a> {
        self.operands.qkv.device().kernel(Function::new(&FAMILY, name))
    }

    fn sized<'l>(&self, launch: Launch<'l>) -> Result<Launch<'l>> {
        sized(self.operator, launch, self.geometry)
    }

    /// Launches a block for each chunk, head and sequence.
    fn by_chunk(&self, launch: Launch<'_>, heads: usize, flops: u64) -> Result<()> {
        let word = |size| gpu::word(self.operator, size);
        let grid = [word(self.geometry.chunks())?, word(heads)?, word(self.geometry.batch)?];
        Ok(launch.cost(0, flops).launch(grid, gpu::THREADS)?)
    }

    /// Launches a block for each strip of a state.
    fn by_strip(&self, launch: Launch<'_>) -> Result<()> {
        let DeltaHeads { value, width, value_width, .. } = self.geometry.settings.heads;
        let word = |size| gpu::word(self.operator, size);
        let grid = [word(value_width.div_ceil(STRIP))?, word(value)?, word(self.geometry.batch)?];
        let launch = launch.shared(word(4 * STRIP * (width + CHUNK))?);
        Ok(launch.cost(0, self.geometry.flops()).launch(grid, gpu::THREADS)?)
    }

    /// Computes normalised rows, decays, corrections and the states before all chunks.
    fn states(&self, last: Option<&Tensor>) -> Result<()> {
        let Operands { qkv, decay, rate, documents, state } = *self.operands;
        let Arrays { queries, keys, sums, x, weights, states, .. } = &self.arrays;
        let DeltaHeads { key, value, .. } = self.geometry.settings.heads;
        let word = |size| gpu::word(self.operator, size);
        let items = 2 * self.geometry.batch * self.geometry.time * key;
        let launch = self.typed(&FAMILY, "normalise").read(qkv).write(queries).write(keys);
        let launch = self.sized(launch)?.f32(self.geometry.settings.epsilon).u32(word(items)?);
        let launch = launch.cost(gpu::bytes(&[queries, keys]), 0);
        launch.launch([word((items * WARP).div_ceil(gpu::THREADS as usize))?, 1, 1], gpu::THREADS)?;
        let launch = self.single("cumulate").read(decay).write(sums);
        self.by_chunk(self.sized(launch)?, value, 0)?;
        let launch = self.typed(&FAMILY, "solve").read(qkv).read(keys).read(sums).read(rate);
        let launch = launch.write(x).write(weights).read(documents);
        self.by_chunk(self.sized(launch)?, value, self.geometry.flops())?;
        let launch = self.single("states").read(keys).read(sums).read(rate).read(weights);
        let launch = launch.write(x).write(states).read(state).write(last).read(documents);
        self.by_strip(self.sized(launch)?)
    }
}

pub(super) fn forward(
    operator: &'static str,
    operands: &Operands<'_>,
    geometry: &Geometry,
    workspace: &Tensor,
    (output_blc, state): (&Tensor, Option<&Tensor>),
) -> Result<()> {
    let call = Call::new(operator, operands, geometry, workspace)?;
    call.states(state)?;
    let Arrays { queries, keys, sums, x, states, .. } = &call.arrays;
    let launch = call.typed(&FAMILY, "outputs").read(queries).read(keys).read(sums).read(operands.rate);
    let launch = launch.read(x).read(states).write(output_blc).read(operands.documents);
    call.by_chunk(call.sized(launch)?, geometry.settings.heads.value, geometry.flops())
}

pub(super) fn backward(
    operator: &'static str,
    (dy_blc, dstate): (&Tensor, Option<&Tensor>),
    operands: &Operands<'_>,
    geometry: &Geometry,
    workspace: &Tensor,
    gradients: &Gradients,
) -> Result<()> {
    let call = Call::new(operator, operands, geometry, workspace)?;
    call.states(None)?;
    let Operands { qkv, rate, documents, .. } = *operands;
    let Arrays { queries, keys, sums, x, weights, states } = &call.arrays;
    let ranges = PlainArrays::new(geometry);
    let DeltaHeads { key, value, width, .. } = geometry.settings.heads;
    let dqueries = view(workspace, ranges.dqueries)?;
    let dkeys = view(workspace, ranges.dkeys)?;
    let du = view(workspace, ranges.du)?;
    let dstates = view(workspace, ranges.dstates)?;
    let flops = geometry.flops();

    let launch = call.typed(&FAMILY_BACKWARD, "local").read(queries).read(keys).read(sums).read(dy_blc);
    call.by_chunk(call.sized(launch.write(&du).read(documents))?, value, flops)?;
    let launch = call.typed(&FAMILY_BACKWARD, "state_gradients").read(queries).read(keys).read(sums);
    let launch = launch.read(rate).read(weights).read(dy_blc).write(&du).write(&dstates);
    let launch = launch.read(dstate).write(gradients.state.as_ref()).read(documents);
    call.by_strip(call.sized(launch)?)?;
    let launch = call.typed(&FAMILY_BACKWARD, "corrections").read(keys).read(sums).read(rate).read(x);
    let launch = launch.write(&du).write(&gradients.qkv).write(&gradients.rate).read(documents);
    call.by_chunk(call.sized(launch)?, value, flops)?;
    let launch = call.typed(&FAMILY_BACKWARD, "gradients").read(qkv).read(queries).read(keys).read(sums);
    let launch = launch.read(rate).read(x).read(states).read(&dstates).read(&du).read(dy_blc);
    let launch = launch.write(weights).write(&dqueries).write(&dkeys).write(&gradients.qkv);
    let launch = call.sized(launch.write(&gradients.decay).read(documents))?;
    let launch = launch.f32(geometry.settings.epsilon).shared(gpu::word(operator, 4 * width)?);
    call.by_chunk(launch, key, 2 * flops)
}
