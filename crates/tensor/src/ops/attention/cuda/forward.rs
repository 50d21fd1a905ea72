//! Launches of the forward pass.

use device::Schedule;

use super::call::{Call, Form, array_bytes, f32_shared, hopper_threads};
use super::families::{F32, F32Variant, FAMILY_F32, FORWARD_KEYS, THREADS};
use super::hopper::{
    self, CONSUMER_ROWS, FAMILY_HOPPER_FORWARD, HOPPER_FORWARD, HopperForward, hopper_row_bytes,
};
use crate::ops::attention::geometry::Geometry;
use crate::ops::attention::heads::Qkv;
use crate::ops::attention::masks::Masks;
use crate::ops::gpu;
use crate::{Result, Tensor};

/// Matmuls of the forward pass: scores, and their product with values.
const MATMULS: u32 = 2;

/// Computes output and log-sum-exp. In half precision it also measures the output's largest magnitude, if the
/// output carries one.
pub(crate) fn forward(
    operator: &'static str,
    geometry: Geometry,
    qkv: &Qkv<Tensor>,
    masks: Masks<'_>,
    output_blc: &Tensor,
    logsumexp_bhl: &Tensor,
) -> Result<()> {
    let call = Call::new(operator, geometry, qkv, masks, &[output_blc])?;
    let width = call.width;
    let scale = geometry.scale();
    let bytes = array_bytes(qkv) + gpu::bytes(&[output_blc, logsumexp_bhl]);
    let kernel = |family, variant, name| {
        let launch = call.kernel(family, variant, name).write(output_blc).write(logsumexp_bhl);
        call.read(launch, qkv).cost(bytes, geometry.flops(1, 1))
    };
    match call.form {
        Form::Half(half) => {
            let block = half.forward();
            let launch = call.layout(kernel(half.family, half.variant, "forward").u32(call.time));
            let launch =
                call.masked(launch.f32(scale).u32(u32::from(call.aligned))).write(output_blc.maxima());
            let launch = if half.padded { call.sinks(launch.u32(width)) } else { launch };
            let grid = call.grid(block.rows, call.heads);
            call.values(launch)
                .shared(block.shared)
                .tiled(call.tiling(
                    false,
                    [block.rows, FORWARD_KEYS],
                    half.columns,
                    MATMULS,
                    block.schedule(),
                ))
                .launch(grid, block.threads)?;
        }
        Form::Hopper { forward, .. } => {
            let HopperForward { consumers, slots, keys, query_tiles, .. } = HOPPER_FORWARD[forward];
            let variant = hopper::variant(forward, call.dtype, HOPPER_FORWARD.len(), call.pairs);
            let rows = query_tiles * CONSUMER_ROWS * consumers + slots * keys;
            let tile = [consumers * CONSUMER_ROWS, keys];
            let launch = kernel(&FAMILY_HOPPER_FORWARD, variant, "forward");
            let launch = call.layout(launch.u32(call.batch).u32(call.time)).f32(scale);
            call.pairs(launch.write(output_blc.maxima()))
                .shared(rows * hopper_row_bytes(width) + 2048)
                .tiled(call.tiling(false, tile, width, MATMULS, Schedule::Pairs))
                .launch(call.hopper_grid(call.time, consumers, call.heads), hopper_threads(consumers))?;
        }
        Form::F32 { sizes, variant } => {
            let launch = call.layout(kernel(&FAMILY_F32, variant, "forward").u32(call.time));
            let F32Variant { tile, width: columns, resident } = F32[sizes];
            let schedule = Schedule::Blocks { resident: resident[0] };
            let grid = call.grid(tile, call.heads);
            call.values(call.sinks(call.masked(launch.u32(width).f32(scale))))
                .shared(f32_shared(3, F32[sizes]))
                .tiled(call.tiling(false, [tile; 2], columns, MATMULS, schedule))
                .launch(grid, THREADS)?;
        }
    }
    Ok(())
}
