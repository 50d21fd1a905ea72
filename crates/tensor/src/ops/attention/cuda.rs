//! Launches of `kernels/attention*.cu`.

use device::cuda::Launch;
use device::{DType, Device, Family, Function};

use super::Geometry;
use crate::ops::kernels::family;
use crate::ops::{check, gpu};
use crate::{Result, Tensor};

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
/// Those with kernels of Hopper's own, in the order of those families' variants.
const HOPPER_WIDTHS: [usize; 2] = [64, 128];
/// Positions that one consumer of a Hopper kernel owns.
const CONSUMER_ROWS: usize = 64;
/// What the f32 kernels are compiled for: head widths up to the first, in tiles of the second.
const F32_FORMS: [(usize, usize); 4] = [(32, 64), (64, 64), (128, 32), (256, 16)];

/// Refuses heads that no kernel is compiled for.
pub(super) fn check(operator: &'static str, qkv: &Tensor, geometry: &Geometry) -> Result<()> {
    let width = geometry.head_width();
    let (possible, which) = match qkv.dtype() {
        DType::Bf16 => (WIDTHS.contains(&width), "of a width of 32, 64 or 128"),
        _ => (width <= 256, "of a width of at most 256"),
    };
    if possible {
        return Ok(());
    }
    Err(check::wrong(operator, "qkv", qkv, format!("heads {which} on a GPU, not {width}")))
}

/// What a call's launches have in common.
struct Call<'a> {
    device: &'a Device,
    geometry: Geometry,
    batch: u32,
    time: u32,
    heads: u32,
    head_width: u32,
    aligned: bool,
}

/// How a product's kernel is compiled and cut.
enum Form {
    /// For any GPU, in bf16: the variant.
    Bf16(usize),
    /// With Hopper's own products, in bf16: the variant.
    Hopper(usize),
    /// In f32: the variant, what it is compiled for, its tile.
    F32(usize, usize, usize),
}

impl<'a> Call<'a> {
    /// `tensors` are those that are read and written by 16 bytes where all begin there.
    fn new(operator: &'static str, geometry: Geometry, qkv: &'a Tensor, tensors: &[&Tensor]) -> Result<Self> {
        Ok(Call {
            device: qkv.device(),
            geometry,
            batch: gpu::word(operator, geometry.batch)?,
            time: gpu::word(operator, geometry.time)?,
            heads: gpu::word(operator, geometry.heads)?,
            head_width: gpu::word(operator, geometry.head_width())?,
            aligned: gpu::aligned(&[qkv]) && gpu::aligned(tensors),
        })
    }

    fn form(&self, dtype: DType) -> Form {
        let width = self.geometry.head_width();
        let place = |widths: &[usize]| widths.iter().position(|w| *w == width);
        if dtype != DType::Bf16 {
            let variant = F32_FORMS.iter().position(|(widest, _)| width <= *widest).unwrap_or_default();
            let (widest, tile) = F32_FORMS[variant];
            return Form::F32(variant, widest, tile);
        }
        let hopper = self.aligned && self.device.description().compute_capability.0 == 9;
        match place(&HOPPER_WIDTHS).filter(|_| hopper) {
            Some(variant) => Form::Hopper(variant),
            None => Form::Bf16(place(&WIDTHS).unwrap_or_default()),
        }
    }

    fn kernel(&self, family: &'static Family, variant: usize, name: &'static str) -> Launch<'a> {
        self.device.kernel(Function::new(family, name).variant(variant))
    }

    /// A block for every `rows` positions of every head.
    fn grid(&self, rows: usize) -> [u32; 3] {
        [self.time.div_ceil(rows as u32), self.heads, self.batch]
    }

    /// A block a multiprocessor, or one for every pair of row blocks where those are fewer.
    fn hopper_grid(&self, consumers: usize) -> [u32; 3] {
        let pairs = self.geometry.time.div_ceil(consumers * CONSUMER_ROWS).div_ceil(2);
        let items = pairs * self.geometry.batch * self.geometry.heads;
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

/// Output and log-sum-exp.
pub(super) fn forward(
    operator: &'static str,
    geometry: Geometry,
    qkv: &Tensor,
    output: &Tensor,
    logsumexp: &Tensor,
) -> Result<()> {
    let call = Call::new(operator, geometry, qkv, &[output])?;
    let (width, scale) = (geometry.head_width(), geometry.scale());
    let kernel = |family, variant, name| {
        let launch = call.kernel(family, variant, name).write(output.region()).write(logsumexp.region());
        launch.read(qkv.region()).cost(gpu::bytes(&[qkv, output, logsumexp]), call.geometry.flops(2))
    };
    match call.form(qkv.dtype()) {
        Form::Bf16(variant) => kernel(&FAMILY, variant, "attention_forward")
            .u32(call.time)
            .u32(call.heads)
            .f32(scale)
            .u32(u32::from(call.aligned))
            .shared(((128 + 4 * 64) * width * 2) as u32)
            .launch(call.grid(128), 256)?,
        Form::Hopper(variant) => {
            let tiles = if width == 64 { 8 } else { 5 };
            kernel(&FAMILY_HOPPER_FORWARD, variant, "attention_forward_hopper")
                .u32(call.batch)
                .u32(call.time)
                .u32(call.heads)
                .f32(scale)
                .shared(((2 + tiles) * 128 * width * 2 + 2048) as u32)
                .launch(call.hopper_grid(2), hopper_threads(2))?;
        }
        Form::F32(variant, widest, tile) => kernel(&FAMILY_F32, variant, "attention_forward")
            .u32(call.time)
            .u32(call.heads)
            .u32(call.head_width)
            .f32(scale)
            .shared(f32_shared(3, widest, tile))
            .launch(call.grid(tile), 256)?,
    }
    Ok(())
}

/// What the backward pass reads, and its workspace.
pub(super) struct Given<'a> {
    pub(super) dy: &'a Tensor,
    pub(super) qkv: &'a Tensor,
    pub(super) output: &'a Tensor,
    pub(super) logsumexp: &'a Tensor,
    pub(super) workspace: &'a Tensor,
}

/// The gradient of `qkv`: first what is the same along a row, then two kernels of which none adds to what the other writes.
pub(super) fn backward(
    operator: &'static str,
    geometry: Geometry,
    given: &Given<'_>,
    dqkv: &Tensor,
) -> Result<()> {
    let call = Call::new(operator, geometry, given.qkv, &[given.dy, given.output, dqkv])?;
    match call.form(given.qkv.dtype()) {
        Form::F32(variant, widest, tile) => backward_f32(&call, given, dqkv, variant, (widest, tile)),
        Form::Bf16(variant) => {
            statistics(&call, given, variant)?;
            backward_bf16(&call, given, dqkv, variant)
        }
        Form::Hopper(variant) => {
            statistics(
                &call,
                given,
                WIDTHS.iter().position(|w| *w == HOPPER_WIDTHS[variant]).unwrap_or_default(),
            )?;
            backward_hopper(&call, given, dqkv, variant)
        }
    }
}

/// The two kernels, each with its products.
const PARTS: [(&str, &str, u64); 2] = [
    ("attention_backward_query", "attention_backward_query_hopper", 3),
    ("attention_backward_key_value", "attention_backward_key_value_hopper", 4),
];

/// Bytes that a part moves at least: all operands once, and `written` of the three thirds.
fn moved(given: &Given<'_>, products: u64) -> u64 {
    gpu::bytes(&[given.dy, given.qkv, given.workspace]) + gpu::bytes(&[given.qkv]) / 3 * (products - 2)
}

fn statistics(call: &Call<'_>, given: &Given<'_>, variant: usize) -> Result<()> {
    let rows = call.batch as usize * call.time as usize * call.heads as usize;
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
        .launch([rows.div_ceil(32) as u32, 1, 1], 256)?;
    Ok(())
}

fn backward_bf16(call: &Call<'_>, given: &Given<'_>, dqkv: &Tensor, variant: usize) -> Result<()> {
    let shared = 6 * 64 * call.head_width * 2 + 1024;
    for (name, _, products) in PARTS {
        call.kernel(&FAMILY, variant, name)
            .write(dqkv.region())
            .read(given.dy.region())
            .read(given.qkv.region())
            .read(given.workspace.region())
            .u32(call.time)
            .u32(call.heads)
            .f32(call.geometry.scale())
            .u32(u32::from(call.aligned))
            .shared(shared)
            .cost(moved(given, products), call.geometry.flops(products))
            .launch(call.grid(64), 128)?;
    }
    Ok(())
}

fn backward_hopper(call: &Call<'_>, given: &Given<'_>, dqkv: &Tensor, variant: usize) -> Result<()> {
    let width = call.geometry.head_width();
    // As in the kernels: consumers, how often their own rows are there, stages.
    let (consumers, owned, stages) = if width == 64 { (3, 2, 6) } else { (2, 1, 4) };
    let rows = CONSUMER_ROWS * consumers;
    let own = 2 * rows * width * 2 + (8 * rows).next_multiple_of(1024);
    let shared = owned * own + stages * (2 * 64 * width * 2 + 1024) + 2048;
    for (_, name, products) in PARTS {
        call.kernel(&FAMILY_HOPPER_BACKWARD, variant, name)
            .write(dqkv.region())
            .read(given.dy.region())
            .read(given.qkv.region())
            .read(given.workspace.region())
            .u32(call.batch)
            .u32(call.time)
            .u32(call.heads)
            .f32(call.geometry.scale())
            .shared(shared as u32)
            .cost(moved(given, products), call.geometry.flops(products))
            .launch(call.hopper_grid(consumers), hopper_threads(consumers))?;
    }
    Ok(())
}

fn backward_f32(
    call: &Call<'_>,
    given: &Given<'_>,
    dqkv: &Tensor,
    variant: usize,
    (widest, tile): (usize, usize),
) -> Result<()> {
    let rows = call.batch as usize * call.time as usize * call.heads as usize;
    call.kernel(&FAMILY_F32, variant, "attention_delta")
        .write(given.workspace.region())
        .read(given.dy.region())
        .read(given.output.region())
        .u32(call.batch)
        .u32(call.time)
        .u32(call.heads)
        .u32(call.head_width)
        .cost(gpu::bytes(&[given.dy, given.output, given.workspace]), 0)
        .launch([rows.div_ceil(8) as u32, 1, 1], 256)?;
    for (name, _, products) in PARTS {
        call.kernel(&FAMILY_F32, variant, name)
            .write(dqkv.region())
            .read(given.dy.region())
            .read(given.qkv.region())
            .read(given.logsumexp.region())
            .read(given.workspace.region())
            .u32(call.time)
            .u32(call.heads)
            .u32(call.head_width)
            .f32(call.geometry.scale())
            .shared(f32_shared(4, widest, tile))
            .cost(moved(given, products), call.geometry.flops(products))
            .launch(call.grid(tile), 256)?;
    }
    Ok(())
}
