//! Choice of a call's kernels, and the arguments that its launches share.

use device::cuda::Launch;
use device::{DType, Device, Family, Function, Region, Schedule, TileRows, Tiling, Units, Work};

use super::families::{F32, F32Variant, widths};
use super::half::Half;
use super::hopper::{self, COLUMNS, CONSUMER_ROWS, HOPPER_FORWARD, HopperKernels, Pairs};
use super::needs::Needs;
use crate::ops::attention::geometry::{Geometry, KEY, QUERY, VALUE};
use crate::ops::attention::heads::{Heads, Qkv};
use crate::ops::attention::masks::Masks;
use crate::ops::gpu;
use crate::{Result, Tensor, TensorError};

/// Kernels of a call, chosen by type, head width and device. Variants are indices into the variants of a
/// family.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// Kernels in half precision for any GPU.
    Half(Half),
    /// Kernels in half precision with Hopper's warp-group matmuls. `forward` is an index into
    /// [`HOPPER_FORWARD`], and `any` are the kernels for any GPU.
    Hopper { forward: usize, backward: HopperKernels, any: Half },
    /// Kernels in f32, with the sizes at index `sizes` of [`F32`].
    F32 { sizes: usize, variant: usize },
}

impl Form {
    /// Returns the kernels for a type and heads, or `None` if none is compiled.
    fn choose(dtype: DType, heads: Heads, needs: Needs) -> Option<Self> {
        let Needs { general, sinks, pairs, hopper, .. } = needs;
        let Heads { width, value_width, .. } = heads;
        let is_even = heads.are_equally_wide();
        match dtype {
            DType::F32 => {
                let sizes =
                    F32.iter().position(|variant| width.max(value_width) <= variant.width as usize)?;
                let before = match (is_even, general || sinks) {
                    (true, false) => 0,
                    (true, true) => F32.len(),
                    (false, _) => 2 * F32.len(),
                };
                Some(Form::F32 { sizes, variant: before + sizes })
            }
            DType::Bf16 | DType::F16 => {
                let any = Half::choose(dtype, heads, needs)?;
                let own = HOPPER_FORWARD.iter().position(|variant| variant.width as usize == width);
                Some(match own.filter(|_| hopper && is_even).zip(hopper::backward(width, dtype, pairs)) {
                    Some((forward, backward)) => Form::Hopper { forward, backward, any },
                    None => Form::Half(any),
                })
            }
            _ => None,
        }
    }
}

/// Refuses a type and heads for which no kernel is compiled.
pub(crate) fn check(operator: &'static str, dtype: DType, heads: Heads) -> Result<()> {
    form(operator, dtype, heads, Needs::default()).map(drop)
}

fn form(operator: &'static str, dtype: DType, heads: Heads, needs: Needs) -> Result<Form> {
    let supported = widths(dtype);
    let width = if supported.has(heads.width) { heads.value_width } else { heads.width };
    let refused = || TensorError::HeadWidth { operator, dtype, width, supported: supported.to_string() };
    Form::choose(dtype, heads, needs).ok_or_else(refused)
}

/// Columns of tiles that a multiprocessor could compute while it begins and ends a row in half types. These
/// and the f32 kernels' half of a tile fit measured times best (`benches/notes/predictions.md`).
const HALF_PROLOGUE: u32 = 128;

/// Arguments that the launches of one call share.
pub(super) struct Call<'a> {
    pub(super) device: &'a Device,
    pub(super) geometry: Geometry,
    pub(super) dtype: DType,
    pub(super) form: Form,
    pub(super) batch: u32,
    pub(super) time: u32,
    /// Position of the first query.
    pub(super) first: u32,
    /// Rows of a sequence in the arrays of keys and values.
    rows_of_keys: u32,
    pub(super) heads: u32,
    pub(super) group: u32,
    /// Query heads of one part of a group.
    pub(super) members: u32,
    pub(super) strides: [u32; 2],
    pub(super) width: u32,
    pub(super) value_width: u32,
    /// Elements from one row of values to the next.
    value_stride: u32,
    pub(super) aligned: bool,
    /// Number of keys in a window; 0: no window.
    window: u32,
    /// Pairs of queries and keys that Hopper's kernels compute.
    pub(super) pairs: Pairs,
    masks: Masks<'a>,
}

impl<'a> Call<'a> {
    /// Describes a call. `tensors` and `qkv` are read and written 16 bytes at a time if all of them are
    /// aligned to 16 bytes.
    pub(super) fn new(
        operator: &'static str,
        geometry: Geometry,
        qkv: &'a Qkv<Tensor>,
        masks: Masks<'a>,
        tensors: &[&Tensor],
    ) -> Result<Self> {
        let word = |size| gpu::word(operator, size);
        let Geometry { batch, time, first, keys, heads, settings, parts, .. } = geometry;
        let device = qkv.arrays()[0].device();
        let dtype = qkv.arrays()[0].dtype();
        let aligned = qkv.arrays().iter().all(|array| gpu::aligned(&[array])) && gpu::aligned(tensors);
        let window = settings.window.filter(|window| *window < geometry.end());
        // The Hopper kernels support no mask but the causal one, and windows or dropout, no cap and no sinks;
        // of a piece of a sequence no window and no dropout, and only whole tiles before it.
        let capped = settings.soft_cap.is_some();
        let sinks = masks.sinks.is_some();
        let general = capped || !geometry.is_whole();
        let pairs = match (geometry.is_whole(), window.is_some(), masks.dropout.is_some()) {
            (true, false, false) => Some(Pairs::Causal),
            (true, false, true) => Some(Pairs::Dropped),
            (true, true, false) => Some(Pairs::Windowed),
            (false, false, false) if first.is_multiple_of(COLUMNS as usize) => Some(Pairs::OfPiece),
            _ => None,
        };
        let plain = masks.documents.is_none() && !capped && !sinks && pairs.is_some();
        let pairs = pairs.unwrap_or_default();
        let (major, _) = device.description().compute_capability;
        let hopper = aligned && plain && major == 9;
        let needs = Needs { general, sinks, pairs, hopper, large: (9..12).contains(&major) };
        Ok(Call {
            device,
            geometry,
            dtype,
            form: form(operator, dtype, heads, needs)?,
            batch: word(batch)?,
            time: word(time)?,
            first: word(first)?,
            rows_of_keys: word(keys)?,
            heads: word(heads.query)?,
            group: word(heads.group())?,
            members: word(heads.group() / heads.parts())?,
            strides: [word(parts[QUERY].stride)?, word(parts[KEY].stride)?],
            width: word(heads.width)?,
            value_width: word(heads.value_width)?,
            value_stride: word(parts[VALUE].stride)?,
            aligned,
            window: word(window.unwrap_or(0))?,
            pairs,
            masks,
        })
    }

    /// Returns the parts of the query heads that share a key head.
    pub(super) fn parts(&self) -> usize {
        (self.group / self.members.max(1)) as usize
    }

    pub(super) fn kernel(&self, family: &'static Family, variant: usize, name: &'static str) -> Launch<'a> {
        self.device.kernel(Function::new(family, name).with_dtype(self.dtype).variant(variant))
    }

    /// Returns the memory of queries, keys and values (or of their gradients), each from its first element.
    pub(super) fn regions<'b>(&self, arrays: &'b Qkv<Tensor>) -> [Region<'b>; 3] {
        self.geometry.parts.map(|part| {
            let whole = arrays.arrays()[part.array].region();
            let start = part.first * self.dtype.bytes();
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

    /// Adds the masks, the cap of scores and the positions of queries to a launch.
    pub(super) fn masked<'b>(&self, launch: Launch<'b>) -> Launch<'b> {
        let launch = launch.read(self.masks.documents);
        let launch =
            self.dropout(launch).u32(self.window).f32(self.geometry.settings.soft_cap.unwrap_or(0.0));
        launch.u32(self.first).u32(self.rows_of_keys)
    }

    fn dropout<'b>(&self, launch: Launch<'b>) -> Launch<'b> {
        match self.masks.dropout {
            Some(mask) => mask.add_to(launch),
            None => launch.u32(0).u32(0).u32(0).f32(1.0),
        }
    }

    /// Adds the arguments that describe the pairs to a launch of a Hopper kernel.
    pub(super) fn pairs<'b>(&self, launch: Launch<'b>) -> Launch<'b> {
        match self.pairs {
            Pairs::Causal => launch,
            Pairs::Windowed => launch.u32(self.window),
            Pairs::OfPiece => launch.u32(self.first).u32(self.rows_of_keys),
            Pairs::Dropped => self.dropout(launch),
        }
    }

    pub(super) fn sinks<'b>(&self, launch: Launch<'b>) -> Launch<'b> {
        launch.read(self.masks.sinks)
    }

    /// Adds the width and stride of values to a launch, if values and keys differ in width.
    pub(super) fn values<'b>(&self, launch: Launch<'b>) -> Launch<'b> {
        match self.geometry.heads.are_equally_wide() {
            true => launch,
            false => launch.u32(self.value_width).u32(self.value_stride),
        }
    }

    /// Returns the grid with one block for every `rows` queries of each of `heads` heads.
    pub(super) fn grid(&self, rows: u32, heads: u32) -> [u32; 3] {
        [self.time.div_ceil(rows), heads, self.batch]
    }

    /// Returns the grid with one block for every `rows` keys, up to the last query.
    pub(super) fn grid_of_keys(&self, rows: u32, heads: u32) -> [u32; 3] {
        [(self.first + self.time).div_ceil(rows), heads, self.batch]
    }

    /// Returns the grid of a Hopper kernel: a block per multiprocessor, or per pair of row blocks of `heads`
    /// heads if there are fewer. A block computes `tiles` tiles of the rows of a sequence.
    pub(super) fn hopper_grid(&self, rows: u32, tiles: u32, heads: u32) -> [u32; 3] {
        let pairs = rows.div_ceil(tiles * CONSUMER_ROWS).div_ceil(2) as usize;
        let items = (pairs * self.geometry.batch * heads as usize) as u64;
        let blocks = u64::from(self.device.description().multiprocessors).min(items);
        [blocks as u32, 1, 1]
    }

    /// Returns the division of a kernel's work into rows of tiles of `tile` positions, of keys (`of_keys`) or
    /// of queries. `width` columns of a head are computed in `matmuls` matmuls.
    pub(super) fn tiling(
        &self,
        of_keys: bool,
        tile: [u32; 2],
        width: u32,
        matmuls: u32,
        schedule: Schedule,
    ) -> Tiling {
        let [heads, passes] = match of_keys {
            true => [self.heads / self.members.max(1), self.members],
            false => [self.heads, 1],
        };
        let rows = TileRows {
            of_keys,
            tile,
            queries: self.time,
            first: self.first,
            window: if self.window == 0 { u32::MAX } else { self.window },
            lines: self.batch.saturating_mul(heads),
            passes,
            tile_flops: Work::flops_of_products([tile[0], tile[1], width, matmuls].map(|size| size as usize)),
            prologue: match self.form {
                Form::F32 { .. } => tile[1] / 2,
                Form::Half(_) | Form::Hopper { .. } => HALF_PROLOGUE,
            },
            schedule,
        };
        Tiling { units: Units::Rows(rows), drops: self.masks.dropout.is_some() }
    }
}

/// Returns the threads of a block of a Hopper kernel: one warp group that loads tiles, and one per consumer.
pub(super) fn hopper_threads(consumers: u32) -> u32 {
    128 * (1 + consumers)
}

/// Returns the bytes of shared memory of an f32 kernel that holds `tiles` tiles of operands and one of
/// scores.
pub(super) fn f32_shared(tiles: u32, F32Variant { width, tile, .. }: F32Variant) -> u32 {
    4 * (tiles * tile * (width + 4) + tile * (tile + 4))
}

pub(super) fn array_bytes(arrays: &Qkv<Tensor>) -> u64 {
    arrays.arrays().iter().map(|array| array.bytes() as u64).sum()
}
