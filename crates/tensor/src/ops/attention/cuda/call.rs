//! The kernels of a call, and the arguments that its launches share.

use device::cuda::Launch;
use device::{DType, Device, Family, Function, Region};

use crate::ops::attention::heads::{Geometry, Heads, KEY, QUERY, Qkv};
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
pub(super) const CONSUMER_ROWS: usize = 64;
/// Variants of the f32 kernels: head widths up to the first, in tiles of the second.
const F32_FORMS: [(usize, usize); 4] = [(32, 64), (64, 64), (128, 32), (256, 16)];

/// Kernels of a call: a function of type, head width and device.
#[derive(Clone, Copy)]
pub(super) enum Form {
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
pub(in crate::ops::attention) fn check(operator: &'static str, dtype: DType, heads: Heads) -> Result<()> {
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
pub(super) struct Call<'a> {
    pub(super) device: &'a Device,
    pub(super) geometry: Geometry,
    pub(super) dtype: DType,
    pub(super) form: Form,
    pub(super) batch: u32,
    pub(super) time: u32,
    pub(super) heads: u32,
    pub(super) group: u32,
    pub(super) strides: [u32; 2],
    pub(super) width: u32,
    pub(super) aligned: bool,
}

impl<'a> Call<'a> {
    /// `tensors` are read and written by 16 bytes where they and `qkv` begin at a multiple of that.
    pub(super) fn new(
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

    pub(super) fn kernel(&self, family: &'static Family, variant: usize, name: &'static str) -> Launch<'a> {
        self.device.kernel(Function::new(family, name).variant(variant))
    }

    /// Queries, keys and values, or their gradients: from the first element of each on.
    pub(super) fn regions<'b>(&self, arrays: &'b Qkv<Tensor>) -> [Region<'b>; 3] {
        self.geometry.parts.map(|part| {
            let (whole, start) = (arrays.arrays()[part.array].region(), part.first * self.dtype.bytes());
            whole.part(start, whole.bytes - start)
        })
    }

    /// Adds queries, keys and values to a launch.
    pub(super) fn read<'b>(&self, launch: Launch<'b>, qkv: &Qkv<Tensor>) -> Launch<'b> {
        self.regions(qkv).into_iter().fold(launch, Launch::read)
    }

    /// Adds the heads and strides to a launch.
    pub(super) fn layout<'b>(&self, launch: Launch<'b>) -> Launch<'b> {
        let [query, key_value] = self.strides;
        launch.u32(self.heads).u32(self.group).u32(query).u32(key_value)
    }

    /// A block for every `rows` positions of each of `heads` heads.
    pub(super) fn grid(&self, rows: usize, heads: u32) -> [u32; 3] {
        [self.time.div_ceil(rows as u32), heads, self.batch]
    }

    /// A block a multiprocessor, or one for every pair of row blocks where those are fewer.
    pub(super) fn hopper_grid(&self, consumers: usize) -> [u32; 3] {
        let pairs = self.geometry.time.div_ceil(consumers * CONSUMER_ROWS).div_ceil(2);
        let items = pairs * self.geometry.batch * self.geometry.heads.query;
        let blocks = (self.device.description().multiprocessors as usize).min(items);
        [blocks as u32, 1, 1]
    }
}

/// Threads of a block of a Hopper kernel: one group brings tiles, each consumer is one more.
pub(super) fn hopper_threads(consumers: usize) -> u32 {
    128 * (1 + consumers as u32)
}

/// Bytes of shared memory of an f32 kernel with `tiles` tiles of `tile` rows, and one of scores.
pub(super) fn f32_shared(tiles: usize, widest: usize, tile: usize) -> u32 {
    (4 * (tiles * tile * (widest + 4) + tile * (tile + 4))) as u32
}

pub(super) fn array_bytes(arrays: &Qkv<Tensor>) -> u64 {
    arrays.arrays().iter().map(|array| array.bytes() as u64).sum()
}
