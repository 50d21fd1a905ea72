//! Launches of the forward pass.

use super::call::{
    Call, FAMILY, FAMILY_F32, FAMILY_HOPPER_FORWARD, Form, array_bytes, f32_shared, hopper_threads,
};
use crate::ops::attention::heads::{Geometry, Qkv};
use crate::ops::gpu;
use crate::{Result, Tensor};

/// Output and log-sum-exp.
pub(in crate::ops::attention) fn forward(
    operator: &'static str,
    geometry: Geometry,
    qkv: &Qkv<Tensor>,
    output: &Tensor,
    logsumexp: &Tensor,
) -> Result<()> {
    let call = Call::new(operator, geometry, qkv, &[output])?;
    let (width, scale) = (geometry.heads.width, geometry.scale());
    let bytes = array_bytes(qkv) + gpu::bytes(&[output, logsumexp]);
    let kernel = |family, variant, name| {
        let launch = call.kernel(family, variant, name).write(output.region()).write(logsumexp.region());
        call.read(launch, qkv).cost(bytes, geometry.flops(2))
    };
    match call.form {
        Form::Bf16 { variant } => call
            .layout(kernel(&FAMILY, variant, "attention_forward").u32(call.time))
            .f32(scale)
            .u32(u32::from(call.aligned))
            .shared(((128 + 4 * 64) * width * 2) as u32)
            .launch(call.grid(128, call.heads), 256)?,
        Form::Hopper { variant, .. } => {
            let tiles = if width == 64 { 8 } else { 5 };
            let launch = kernel(&FAMILY_HOPPER_FORWARD, variant, "attention_forward_hopper");
            call.layout(launch.u32(call.batch).u32(call.time))
                .f32(scale)
                .shared(((2 + tiles) * 128 * width * 2 + 2048) as u32)
                .launch(call.hopper_grid(2), hopper_threads(2))?;
        }
        Form::F32 { variant, widest, tile } => call
            .layout(kernel(&FAMILY_F32, variant, "attention_forward").u32(call.time))
            .u32(call.width)
            .f32(scale)
            .shared(f32_shared(3, widest, tile))
            .launch(call.grid(tile, call.heads), 256)?,
    }
    Ok(())
}
