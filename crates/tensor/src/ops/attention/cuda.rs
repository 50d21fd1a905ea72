//! Launches of `kernels/attention*.cu`.

use device::cuda::Launch;
use device::{DType, Device, Family, Function, Region};

use super::heads::{Geometry, KEY, QUERY};
use super::{Heads, Qkv};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor, TensorError};

/// Attention in bf16 on tensor cores of any kind, for heads of each of these widths.
pub(in crate::ops) static FAMILY: Family = family!(
    "attention",
    variants: &[&[("HEAD_DIM", 32)], &[("HEAD_DIM", 64)], &[("HEAD_DIM", 128)]],
);

/// Attention in f32, for head widths up to each of these.
pub(in crate::ops) static FAMILY_F32: Family = family!(
    "attention_f32",
    variants: &[&[("HEAD_DIM", 32)], &[("HEAD_DIM", 64)], &[("HEAD_DIM", 128)], &[("HEAD_DIM", 256)]],
);

/// Forward attention in bf16 with Hopper's own matmuls; empty for other architectures.
pub(in crate::ops) static FAMILY_HOPPER_FORWARD: Family = family!(
    "attention_hopper_forward",
    headers: ["attention_hopper.cuh"],
    variants: &[&[("HEAD_DIM", 64), ("CONSUMERS", 2)], &[("HEAD_DIM", 128), ("CONSUMERS", 2)]],
);

/// Backward attention in bf16 with Hopper's own matmuls; empty for other architectures.
pub(in crate::ops) static FAMILY_HOPPER_BACKWARD: Family = family!(
    "attention_hopper_backward",
    headers: ["attention_hopper.cuh"],
    variants: &[&[("HEAD_DIM", 64), ("CONSUMERS", 3)], &[("HEAD_DIM", 128), ("CONSUMERS", 2)]],
);

/// Head widths in bf16, in the order of the family's variants.
const WIDTHS: [usize; 3] = [32, 64, 128];
/// Head widths with kernels for Hopper, in the order of those families' variants.
const HOPPER_WIDTHS: [usize; 2] = [64, 128];
/// Positions that one consumer of a Hopper kernel owns.
const CONSUMER_ROWS: usize = 64;
/// Variants of the f32 kernels: head widths up to the first, in tiles of the second.
const F32_FORMS: [(usize, usize); 4] = [(32, 64), (64, 64), (128, 32), (256, 16)];

/// Kernels of a call: a function of type, head width and device.
#[derive(Clone, Copy)]
enum Form {
    /// In bf16 for any GPU.
    Bf16 { variant: usize },
    /// In bf16 with Hopper's own matmuls; `any` is the variant for any GPU.
    Hopper { variant: usize, any: usize },
    /// In f32, compiled for heads up to `widest`, in tiles of `tile` positions.
    F32 { variant: usize, widest: usize, tile: usize },
}

impl Form {
    /// `None` where no kernel is compiled for the type and width.
    fn of(dtype: DType, width: usize, hopper: bool) -> Option<Self> {
        let place = |widths: &[usize]| widths.iter().position(|w| *w == width);
        match dtype {
            DType::F32 => {
                let variant = F32_FORMS.iter().position(|(widest, _)| width <= *widest)?;
                let (widest, tile) = F32_FORMS[variant];
                Some(Form::F32 { variant, widest, tile })
            }
            DType::Bf16 => {
                let any = place(&WIDTHS)?;
                Some(match place(&HOPPER_WIDTHS).filter(|_| hopper) {
                    Some(variant) => Form::Hopper { variant, any },
                    None => Form::Bf16 { variant: any },
                })
            }
            _ => None,
        }
    }
}

/// Refuses a type and head width without a kernel.
pub(super) fn check(operator: &'static str, dtype: DType, heads: Heads) -> Result<()> {
    form(operator, dtype, heads.width, false).map(drop)
}

fn form(operator: &'static str, dtype: DType, width: usize, hopper: bool) -> Result<Form> {
    let supported = match dtype {
        DType::F32 => "widths up to 256",
        DType::Bf16 => "widths 32, 64 and 128",
        _ => "none in this type",
    };
    Form::of(dtype, width, hopper).ok_or(TensorError::HeadWidth { operator, dtype, width, supported })
}

/// Arguments that the launches of one call share.
struct Call<'a> {
    device: &'a Device,
    geometry: Geometry,
    dtype: DType,
    form: Form,
    batch: u32,
    time: u32,
    heads: u32,
    group: u32,
    strides: [u32; 2],
    width: u32,
    aligned: bool,
}

impl<'a> Call<'a> {
    /// `tensors` are read and written by 16 bytes where they and `qkv` begin at a multiple of that.
    fn new(
        operator: &'static str,
        geometry: Geometry,
        qkv: &'a Qkv<Tensor>,
        tensors: &[&Tensor],
    ) -> Result<Self> {
        let word = |size| gpu::word(operator, size);
        let Geometry { batch, time, heads, parts } = geometry;
        let (device, dtype) = (qkv.arrays()[0].device(), qkv.arrays()[0].dtype());
        let aligned = qkv.arrays().iter().all(|array| gpu::aligned(&[array])) && gpu::aligned(tensors);
        let hopper = aligned && device.description().compute_capability.0 == 9;
        Ok(Call {
            device,
            geometry,
            dtype,
            form: form(operator, dtype, heads.width, hopper)?,
            batch: word(batch)?,
            time: word(time)?,
            heads: word(heads.query)?,
            group: word(heads.group())?,
            strides: [word(parts[QUERY].stride)?, word(parts[KEY].stride)?],
            width: word(heads.width)?,
            aligned,
        })
    }

    fn kernel(&self, family: &'static Family, variant: usize, name: &'static str) -> Launch<'a> {
        self.device.kernel(Function::new(family, name).variant(variant))
    }

    /// Queries, keys and values, or their gradients: from the first element of each on.
    fn regions<'b>(&self, arrays: &'b Qkv<Tensor>) -> [Region<'b>; 3] {
        self.geometry.parts.map(|part| {
            let (whole, start) = (arrays.arrays()[part.array].region(), part.first * self.dtype.bytes());
            whole.part(start, whole.bytes - start)
        })
    }

    /// Adds queries, keys and values to a launch.
    fn read<'b>(&self, launch: Launch<'b>, qkv: &Qkv<Tensor>) -> Launch<'b> {
        self.regions(qkv).into_iter().fold(launch, Launch::read)
    }

    /// Adds the heads and strides to a launch.
    fn layout<'b>(&self, launch: Launch<'b>) -> Launch<'b> {
        let [query, key_value] = self.strides;
        launch.u32(self.heads).u32(self.group).u32(query).u32(key_value)
    }

    /// A block for every `rows` positions of each of `heads` heads.
    fn grid(&self, rows: usize, heads: u32) -> [u32; 3] {
        [self.time.div_ceil(rows as u32), heads, self.batch]
    }

    /// A block a multiprocessor, or one for every pair of row blocks where those are fewer.
    fn hopper_grid(&self, consumers: usize) -> [u32; 3] {
        let pairs = self.geometry.time.div_ceil(consumers * CONSUMER_ROWS).div_ceil(2);
        let items = pairs * self.geometry.batch * self.geometry.heads.query;
        let blocks = (self.device.description().multiprocessors as usize).min(items);
        [blocks as u32, 1, 1]
    }
}

/// Threads of a block of a Hopper kernel: one group brings tiles, each consumer is one more.
fn hopper_threads(consumers: usize) -> u32 {
    128 * (1 + consumers as u32)
}

/// Bytes of shared memory of an f32 kernel with `tiles` tiles of `tile` rows, and one of scores.
fn f32_shared(tiles: usize, widest: usize, tile: usize) -> u32 {
    (4 * (tiles * tile * (widest + 4) + tile * (tile + 4))) as u32
}

fn array_bytes(arrays: &Qkv<Tensor>) -> u64 {
    arrays.arrays().iter().map(|array| array.bytes() as u64).sum()
}

/// Output and log-sum-exp.
pub(super) fn forward(
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

/// Operands of the backward pass, and its workspace.
pub(super) struct Given<'a> {
    pub(super) dy: &'a Tensor,
    pub(super) qkv: &'a Qkv<Tensor>,
    pub(super) output: &'a Tensor,
    pub(super) logsumexp: &'a Tensor,
    pub(super) workspace: &'a Tensor,
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
pub(super) fn backward(
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
