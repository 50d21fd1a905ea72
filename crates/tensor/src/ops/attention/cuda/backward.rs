//! Launches of the backward pass.

use device::cuda::Launch;

use super::call::{
    CONSUMER_ROWS, Call, FAMILY, FAMILY_F32, FAMILY_HOPPER_BACKWARD, Form, array_bytes, f32_shared,
    hopper_threads,
};
use crate::ops::attention::heads::{Geometry, Qkv};
use crate::ops::gpu;
use crate::{Result, Tensor};

/// Operands of the backward pass, and its workspace.
pub(in crate::ops::attention) struct Given<'a> {
    pub(in crate::ops::attention) dy: &'a Tensor,
    pub(in crate::ops::attention) qkv: &'a Qkv<Tensor>,
    pub(in crate::ops::attention) output: &'a Tensor,
    pub(in crate::ops::attention) logsumexp: &'a Tensor,
    pub(in crate::ops::attention) workspace: &'a Tensor,
}

/// One of the two kernels of a backward pass; neither adds to what the other writes.
#[derive(Clone, Copy)]
enum Owner {
    /// Owns queries, and writes their gradients.
    Query,
    /// Owns keys and values.
    KeyValue,
}

impl Owner {
    const ALL: [Owner; 2] = [Owner::Query, Owner::KeyValue];

    fn name(self) -> &'static str {
        match self {
            Owner::Query => "attention_backward_query",
            Owner::KeyValue => "attention_backward_key_value",
        }
    }

    fn hopper_name(self) -> &'static str {
        match self {
            Owner::Query => "attention_backward_query_hopper",
            Owner::KeyValue => "attention_backward_key_value_hopper",
        }
    }
}

/// The backward pass of one call.
struct Backward<'a> {
    call: Call<'a>,
    given: &'a Given<'a>,
    gradients: &'a Qkv<Tensor>,
}

/// The gradients of `qkv`: first the numbers that are the same along a row, then a kernel for each owner.
pub(in crate::ops::attention) fn backward(
    operator: &'static str,
    geometry: Geometry,
    given: &Given<'_>,
    gradients: &Qkv<Tensor>,
) -> Result<()> {
    let mut tensors = vec![given.dy, given.output];
    tensors.extend(gradients.arrays());
    let call = Call::new(operator, geometry, given.qkv, &tensors)?;
    let backward = Backward { call, given, gradients };
    match backward.call.form {
        Form::F32 { variant, widest, tile } => {
            backward.delta(variant)?;
            Owner::ALL.into_iter().try_for_each(|owner| backward.f32(owner, variant, (widest, tile)))
        }
        Form::Bf16 { variant } => {
            backward.statistics(variant)?;
            Owner::ALL.into_iter().try_for_each(|owner| backward.bf16(owner, variant))
        }
        Form::Hopper { variant, any } => {
            backward.statistics(any)?;
            backward.hopper(Owner::Query, variant)?;
            // The Hopper kernel that owns keys meets one query head for each.
            match geometry.heads.group() {
                1 => backward.hopper(Owner::KeyValue, variant),
                _ => backward.bf16(Owner::KeyValue, any),
            }
        }
    }
}

impl<'a> Backward<'a> {
    /// A kernel with its outputs, `dy`, queries, keys and values, and its cost: it reads all operands once.
    fn kernel(&self, owner: Owner, launch: Launch<'a>) -> Launch<'a> {
        let Backward { call, given, gradients } = self;
        let [dq, dk, dv] = call.regions(gradients);
        let heads = call.geometry.heads;
        let (launch, columns, matmuls) = match owner {
            Owner::Query => (launch.write(dq), heads.query_columns(), 3),
            Owner::KeyValue => (launch.write(dk).write(dv), 2 * heads.key_value_columns(), 4),
        };
        let rows = call.geometry.batch * call.geometry.time;
        let written = (rows * columns * call.dtype.bytes()) as u64;
        let read = gpu::bytes(&[given.dy, given.workspace]) + array_bytes(given.qkv);
        let launch = call.read(launch.read(given.dy.region()), given.qkv);
        launch.cost(read + written, call.geometry.flops(matmuls))
    }

    /// Heads that a kernel's grid runs over.
    fn grid_heads(&self, owner: Owner) -> u32 {
        match owner {
            Owner::Query => self.call.heads,
            Owner::KeyValue => self.call.heads / self.call.group,
        }
    }

    /// Rows of all query heads.
    fn rows(&self) -> usize {
        let Geometry { batch, time, heads, .. } = self.call.geometry;
        batch * time * heads.query
    }

    /// Log-sum-exps in powers of two, and deltas.
    fn statistics(&self, variant: usize) -> Result<()> {
        let Backward { call, given, .. } = self;
        call.kernel(&FAMILY, variant, "attention_statistics")
            .write(given.workspace.region())
            .read(given.dy.region())
            .read(given.output.region())
            .read(given.logsumexp.region())
            .u32(call.batch)
            .u32(call.time)
            .u32(call.heads)
            .u32(u32::from(call.aligned))
            .cost(gpu::bytes(&[given.dy, given.output, given.logsumexp, given.workspace]), 0)
            .launch([self.rows().div_ceil(32) as u32, 1, 1], 256)?;
        Ok(())
    }

    fn bf16(&self, owner: Owner, variant: usize) -> Result<()> {
        let call = &self.call;
        let launch = self.kernel(owner, call.kernel(&FAMILY, variant, owner.name()));
        call.layout(launch.read(self.given.workspace.region()).u32(call.time))
            .f32(call.geometry.scale())
            .u32(u32::from(call.aligned))
            .shared(6 * 64 * call.width * 2 + 1024)
            .launch(call.grid(64, self.grid_heads(owner)), 128)?;
        Ok(())
    }

    fn hopper(&self, owner: Owner, variant: usize) -> Result<()> {
        let call = &self.call;
        let width = call.geometry.heads.width;
        // As in the kernels: consumers, copies of their own rows, stages.
        let (consumers, owned, stages) = if width == 64 { (3, 2, 6) } else { (2, 1, 4) };
        let rows = CONSUMER_ROWS * consumers;
        let own = 2 * rows * width * 2 + (8 * rows).next_multiple_of(1024);
        let shared = owned * own + stages * (2 * 64 * width * 2 + 1024) + 2048;
        let launch = call.kernel(&FAMILY_HOPPER_BACKWARD, variant, owner.hopper_name());
        let launch = self.kernel(owner, launch).read(self.given.workspace.region());
        call.layout(launch.u32(call.batch).u32(call.time))
            .f32(call.geometry.scale())
            .shared(shared as u32)
            .launch(call.hopper_grid(consumers), hopper_threads(consumers))?;
        Ok(())
    }

    /// The sum over every row of dy · output.
    fn delta(&self, variant: usize) -> Result<()> {
        let Backward { call, given, .. } = self;
        call.kernel(&FAMILY_F32, variant, "attention_delta")
            .write(given.workspace.region())
            .read(given.dy.region())
            .read(given.output.region())
            .u32(call.batch)
            .u32(call.time)
            .u32(call.heads)
            .u32(call.width)
            .cost(gpu::bytes(&[given.dy, given.output, given.workspace]), 0)
            .launch([self.rows().div_ceil(8) as u32, 1, 1], 256)?;
        Ok(())
    }

    fn f32(&self, owner: Owner, variant: usize, (widest, tile): (usize, usize)) -> Result<()> {
        let call = &self.call;
        let launch = self.kernel(owner, call.kernel(&FAMILY_F32, variant, owner.name()));
        let launch = launch.read(self.given.logsumexp.region()).read(self.given.workspace.region());
        call.layout(launch.u32(call.time))
            .u32(call.width)
            .f32(call.geometry.scale())
            .shared(f32_shared(4, widest, tile))
            .launch(call.grid(tile, self.grid_heads(owner)), 256)?;
        Ok(())
    }
}
