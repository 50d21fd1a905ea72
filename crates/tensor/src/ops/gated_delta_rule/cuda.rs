//! Launches of `kernels/gated_delta_rule.cu` and `kernels/gated_delta_rule_backward.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::operands::{CHUNK, DeltaHeads, Geometry, Gradients, Operands};
use super::workspace::gpu as arrays;
use crate::ops::kernels::family;
use crate::ops::{check, gpu};
use crate::{Result, Tensor};

/// Constants with which the kernels are compiled.
const CONSTANTS: &[(&str, u32)] = &[gpu::THREADS_CONSTANT, ("CHUNK", CHUNK as u32)];
/// Columns of a strip of states.
const STRIP: usize = 16;
/// Columns of the widest key. A strip of states must fit into 48 KiB of shared memory.
const WIDEST: usize = 256;
/// Threads of a warp.
const WARP: usize = 32;

pub(crate) static FAMILY: Family =
    family!("gated_delta_rule", headers: ["gated_delta_rule.cuh"], constants: CONSTANTS);
pub(crate) static FAMILY_BACKWARD: Family =
    family!("gated_delta_rule_backward", headers: ["gated_delta_rule.cuh"], constants: CONSTANTS);

/// Arrays of the workspace, in its order.
struct Arrays {
    queries: Tensor,
    keys: Tensor,
    sums: Tensor,
    x: Tensor,
    weights: Tensor,
    states: Tensor,
    /// Arrays of the backward pass alone.
    rest: Tensor,
}

impl Arrays {
    fn new(workspace: &Tensor, geometry: &Geometry) -> Result<Self> {
        let sizes = arrays(geometry);
        let mut start = 0;
        let mut take = |count: usize| {
            let view = workspace.view(start, [count]);
            start += count;
            view
        };
        Ok(Arrays {
            queries: take(sizes.keys)?,
            keys: take(sizes.keys)?,
            sums: take(sizes.decays)?,
            x: take(sizes.values)?,
            weights: take(sizes.weights)?,
            states: take(sizes.states)?,
            rest: take(workspace.elements() - sizes.forward)?,
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
        Ok(Call { operator, operands, geometry, arrays: Arrays::new(workspace, geometry)? })
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

/// Refuses keys that are wider than a strip of states allows.
pub(super) fn check_width(operator: &'static str, qkv: &Tensor, geometry: &Geometry) -> Result<()> {
    if geometry.settings.heads.width <= WIDEST {
        return Ok(());
    }
    Err(check::wrong(operator, "qkv", qkv, format!("keys of at most {WIDEST} columns")))
}

/// Adds the sizes to a launch.
fn sized<'l>(operator: &'static str, launch: Launch<'l>, geometry: &Geometry) -> Result<Launch<'l>> {
    let DeltaHeads { key, value, width, value_width } = geometry.settings.heads;
    let word = |size| gpu::word(operator, size);
    let launch = launch.u32(word(geometry.time)?).u32(word(key)?).u32(word(value)?).u32(word(width)?);
    let launch = launch.u32(word(value_width)?).u32(word(geometry.settings.channels())?);
    Ok(launch.u32(word(geometry.chunks())?))
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
    let Arrays { queries, keys, sums, x, weights, states, rest } = &call.arrays;
    let sizes = arrays(geometry);
    let DeltaHeads { key, value, width, .. } = geometry.settings.heads;
    let dqueries = rest.view(0, [sizes.keys])?;
    let dkeys = rest.view(sizes.keys, [sizes.keys])?;
    let du = rest.view(2 * sizes.keys, [sizes.values])?;
    let dstates = rest.view(2 * sizes.keys + sizes.values, [sizes.states])?;
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

/// Advances the states by one token of every slot.
pub(super) fn step(
    operator: &'static str,
    operands: &Operands<'_>,
    geometry: &Geometry,
    states: &Tensor,
    output_blc: &Tensor,
) -> Result<()> {
    check_width(operator, operands.qkv, geometry)?;
    let Operands { qkv, decay, rate, documents, .. } = *operands;
    let DeltaHeads { value, width, .. } = geometry.settings.heads;
    let kernel = Function::new(&FAMILY, "step").with_dtype(qkv.dtype());
    let launch = qkv.device().kernel(kernel).read(qkv).read(decay).read(rate).write(states);
    let launch = sized(operator, launch.read(documents).write(output_blc), geometry)?;
    let word = |size| gpu::word(operator, size);
    let launch = launch.f32(geometry.settings.epsilon).u32(word(states.shape().dims()[0])?);
    let launch = launch.shared(word(12 * width)?).cost(2 * states.bytes() as u64, 0);
    Ok(launch.launch([word(value)?, word(geometry.batch)?, 1], gpu::THREADS)?)
}
