//! Launches of the forward pass.

use super::call::{Call, Form, after_bf16, array_bytes, f32_shared, hopper_threads};
use super::families::{
    CONSUMER_ROWS, F32, FAMILY, FAMILY_F32, FAMILY_HOPPER_FORWARD, FORWARD_KEYS, FORWARD_WARPS,
    HOPPER_FORWARD, HopperForward, KEYS, QUERY_TILES, THREADS,
};
use crate::ops::attention::geometry::Geometry;
use crate::ops::attention::heads::Qkv;
use crate::ops::attention::masks::Masks;
use crate::ops::gpu;
use crate::{Result, Tensor};

/// Computes output and log-sum-exp, and in half precision measures what accompanies the output.
pub(crate) fn forward(
    operator: &'static str,
    geometry: Geometry,
    qkv: &Qkv<Tensor>,
    masks: Masks<'_>,
    output: &Tensor,
    logsumexp: &Tensor,
) -> Result<()> {
    let call = Call::new(operator, geometry, qkv, masks, &[output])?;
    let (width, scale) = (call.width, geometry.scale());
    let bytes = array_bytes(qkv) + gpu::bytes(&[output, logsumexp]);
    let kernel = |family, variant, name| {
        let launch = call.kernel(family, variant, name).write(output.region()).write(logsumexp.region());
        call.read(launch, qkv).cost(bytes, geometry.flops(2))
    };
    match call.form {
        Form::Half { variant } => {
            let rows = 16 * FORWARD_WARPS;
            let launch = call.layout(kernel(&FAMILY, variant, "forward").u32(call.time));
            let launch = call.masked(launch.f32(scale).u32(u32::from(call.aligned)));
            gpu::write_any(launch, output.maxima())
                .shared((rows + 4 * FORWARD_KEYS) * width * 2)
                .launch(call.grid(rows, call.heads), 32 * FORWARD_WARPS)?;
        }
        Form::Hopper { index, .. } => {
            let HopperForward { consumers, slots, .. } = HOPPER_FORWARD[index];
            let variant = index + after_bf16(call.dtype, HOPPER_FORWARD.len());
            let rows = QUERY_TILES * CONSUMER_ROWS * consumers + slots * KEYS;
            let launch = kernel(&FAMILY_HOPPER_FORWARD, variant, "forward");
            let launch = call.layout(launch.u32(call.batch).u32(call.time)).f32(scale);
            gpu::write_any(launch, output.maxima())
                .shared(rows * width * 2 + 2048)
                .launch(call.hopper_grid(consumers, call.heads), hopper_threads(consumers))?;
        }
        Form::F32 { sizes, variant } => {
            let launch = call.layout(kernel(&FAMILY_F32, variant, "forward").u32(call.time));
            call.masked(launch.u32(width).f32(scale))
                .shared(f32_shared(3, F32[sizes]))
                .launch(call.grid(F32[sizes].tile, call.heads), THREADS)?;
        }
    }
    Ok(())
}
