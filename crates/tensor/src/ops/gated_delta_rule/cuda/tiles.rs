//! Launches of the kernels on tensor cores, `kernels/gated_delta_tiles.cu` and
//! `kernels/gated_delta_tiles_backward.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::launch::{sized, view};
use crate::ops::gated_delta_rule::operands::{CHUNK, DeltaHeads, Geometry, Gradients, Operands};
use crate::ops::gated_delta_rule::workspace::{TILE_WIDTHS, TileArrays};
use crate::ops::kernels::family;
use crate::ops::{check, gpu};
use crate::{DType, Result, Tensor};

/// Threads of a block that prepares a chunk: a warp for each 16 of its tokens.
const PREPARE_THREADS: u32 = 128;
/// Threads of a block that computes a chunk's gradients: two warps for each 16 of its tokens.
const GRADIENT_THREADS: u32 = 256;
/// Value columns per block of the kernels that go through the chunks in order; a thread has half a column.
const STRIP: usize = 128;
/// Value columns per block of these kernels if values are narrow.
const NARROW_STRIP: usize = 64;
/// Columns of values in a piece of the gradients.
const PIECE: usize = 64;
/// Count of values per token, of norms, decays and rates, that kernels copy with each chunk.
const COPIED_SCALES: usize = 4;
/// Count of such values per token that the backward kernels copy.
const GRADIENT_SCALES: usize = 6;
/// Columns of padding of an f32 row in shared memory.
const PADDING: usize = 4;
/// Bytes to which tiles are aligned in shared memory.
const ALIGNMENT: usize = 1024;

const CONSTANTS: &[(&str, u32)] = &[
    ("CHUNK", CHUNK as u32),
    ("PREPARE_THREADS", PREPARE_THREADS),
    ("GRADIENT_THREADS", GRADIENT_THREADS),
    ("STRIP", STRIP as u32),
    ("VALUE_PIECE", PIECE as u32),
];
const IN_F16: (&str, u32) = ("HALF_IS_F16", 1);
const VARIANTS: &[&[(&str, u32)]] = &[
    &[("WIDTH", TILE_WIDTHS[0] as u32)],
    &[("WIDTH", TILE_WIDTHS[1] as u32)],
    &[("WIDTH", TILE_WIDTHS[0] as u32), IN_F16],
    &[("WIDTH", TILE_WIDTHS[1] as u32), IN_F16],
];

pub(crate) static FAMILY_TILES: Family = family!(
    "gated_delta_tiles",
    headers: ["gated_delta_tiles.cuh", "hopper.cuh", "recurrent_chunk.cuh", "recurrent_tiles.cuh", "tensor_cores.cuh"],
    constants: CONSTANTS,
    variants: VARIANTS,
);
pub(crate) static FAMILY_TILES_BACKWARD: Family = family!(
    "gated_delta_tiles_backward",
    headers: ["gated_delta_tiles.cuh", "hopper.cuh", "recurrent_chunk.cuh", "recurrent_tiles.cuh", "tensor_cores.cuh"],
    constants: CONSTANTS,
    variants: VARIANTS,
);

/// A call of the operator.
struct Call<'a> {
    operator: &'static str,
    operands: &'a Operands<'a>,
    geometry: &'a Geometry,
    tile_width: usize,
    solved: Tensor,
    pairs: Tensor,
    scales: Tensor,
}

impl<'a> Call<'a> {
    fn new(
        operator: &'static str,
        operands: &'a Operands<'a>,
        geometry: &'a Geometry,
        workspace: &Tensor,
        (arrays, tile_width): (&TileArrays, usize),
    ) -> Result<Self> {
        if !gpu::aligned(&[operands.qkv]) {
            return Err(check::wrong(operator, "qkv", operands.qkv, "rows aligned to 16 bytes".to_owned()));
        }
        let solved = view(workspace, arrays.solved.clone())?;
        let pairs = view(workspace, arrays.pairs.clone())?;
        let scales = view(workspace, arrays.scales.clone())?;
        Ok(Call { operator, operands, geometry, tile_width, solved, pairs, scales })
    }

    fn kernel(&self, family: &'static Family, name: &'static str) -> Launch<'a> {
        let qkv = self.operands.qkv;
        let width = TILE_WIDTHS.iter().position(|width| *width == self.tile_width).unwrap_or_default();
        let variant = width + if qkv.dtype() == DType::F16 { TILE_WIDTHS.len() } else { 0 };
        qkv.device().kernel(Function::new(family, name).variant(variant).with_dtype(qkv.dtype()))
    }

    /// Bytes of a tile of queries or keys.
    fn tile(&self) -> usize {
        CHUNK * self.tile_width * 2
    }

    /// Sets the sizes, the shared memory and the least bytes and FLOPs of a launch.
    fn prepared<'l>(
        &self,
        launch: Launch<'l>,
        shared: usize,
        bytes: u64,
        flops: usize,
    ) -> Result<Launch<'l>> {
        let launch = sized(self.operator, launch, self.geometry)?;
        let flops = (2 * self.geometry.batch * self.geometry.time * flops) as u64;
        Ok(launch.shared(gpu::word(self.operator, ALIGNMENT + shared)?).cost(bytes, flops))
    }

    /// Launches a block for each chunk, head and sequence.
    fn by_chunk(&self, launch: Launch<'_>, heads: usize, threads: u32) -> Result<()> {
        let word = |size| gpu::word(self.operator, size);
        let grid = [word(self.geometry.chunks())?, word(heads)?, word(self.geometry.batch)?];
        Ok(launch.launch(grid, threads)?)
    }

    /// Launches a block for each strip of a head's values.
    fn by_strip(&self, launch: Launch<'_>) -> Result<()> {
        let DeltaHeads { value, value_width, .. } = self.geometry.settings.heads;
        let word = |size| gpu::word(self.operator, size);
        let strip = if value_width <= NARROW_STRIP { NARROW_STRIP } else { STRIP };
        let grid = [word(value_width.div_ceil(strip))?, word(value)?, word(self.geometry.batch)?];
        Ok(launch.launch(grid, word(2 * strip)?)?)
    }

    /// Computes the arrays that depend on one chunk's tokens only: inverses, pairs and scales.
    fn prepare(&self) -> Result<()> {
        let Operands { qkv, decay, rate, documents, .. } = *self.operands;
        let DeltaHeads { value, width, .. } = self.geometry.settings.heads;
        let square = CHUNK * (CHUNK + PADDING) * DType::F32.bytes();
        let launch = self.kernel(&FAMILY_TILES, "prepare").read(qkv).read(decay).read(rate);
        let launch = launch.write(&self.solved).write(&self.pairs).write(&self.scales).read(documents);
        let bytes = gpu::bytes(&[qkv, &self.solved, &self.pairs, &self.scales]);
        let shared = (2 * self.tile()).max(square) + square;
        let launch = self.prepared(launch, shared, bytes, 2 * value * CHUNK * width)?;
        self.by_chunk(launch.f32(self.geometry.settings.epsilon), value, PREPARE_THREADS)
    }

    /// Returns the shared memory of one pipeline stage in bytes, for a kernel that goes through the chunks in
    /// order: `tiles` tiles of queries or keys, and `squares` matrices of pairs of tokens.
    fn stage(&self, tiles: usize, squares: usize) -> usize {
        let scales = COPIED_SCALES * CHUNK * DType::F32.bytes();
        tiles * self.tile() + 2 * CHUNK * (STRIP + squares * CHUNK) + scales
    }
}

pub(super) fn forward(
    operator: &'static str,
    operands: &Operands<'_>,
    geometry: &Geometry,
    (workspace, tile_width): (&Tensor, usize),
    (output_blc, state): (&Tensor, Option<&Tensor>),
) -> Result<()> {
    let arrays = TileArrays::new(geometry, tile_width);
    let call = Call::new(operator, operands, geometry, workspace, (&arrays, tile_width))?;
    call.prepare()?;
    let DeltaHeads { value, width, value_width, .. } = geometry.settings.heads;
    let Operands { qkv, state: first, .. } = *operands;
    let launch = call.kernel(&FAMILY_TILES, "outputs").read(qkv).read(&call.solved).read(&call.pairs);
    let launch = launch.read(&call.scales).read(first).write(state).write(output_blc);
    let bytes = gpu::bytes(&[qkv, &call.solved, &call.pairs, output_blc]);
    let flops = value * value_width * (3 * width + 2 * CHUNK);
    call.by_strip(call.prepared(launch, 2 * call.stage(2, 2), bytes, flops)?)
}

pub(super) fn backward(
    operator: &'static str,
    (dy_blc, dstate): (&Tensor, Option<&Tensor>),
    operands: &Operands<'_>,
    geometry: &Geometry,
    (workspace, tile_width): (&Tensor, usize),
    gradients: &Gradients,
) -> Result<()> {
    let arrays = TileArrays::new(geometry, tile_width);
    let call = Call::new(operator, operands, geometry, workspace, (&arrays, tile_width))?;
    call.prepare()?;
    let Operands { qkv, documents, state: first, .. } = *operands;
    let DeltaHeads { key, value, width, value_width } = geometry.settings.heads;
    let x = view(workspace, arrays.x)?;
    let states = view(workspace, arrays.states)?;
    let dstates = view(workspace, arrays.dstates)?;

    let launch = call.kernel(&FAMILY_TILES, "states").read(qkv).read(&call.solved).read(&call.scales);
    let launch = launch.read(first).write(&x).write(&states);
    let bytes = gpu::bytes(&[&call.solved, &x, &x, &states]);
    let flops = value * value_width * (2 * width + CHUNK);
    call.by_strip(call.prepared(launch, 2 * call.stage(1, 1), bytes, flops)?)?;

    let launch = call.kernel(&FAMILY_TILES_BACKWARD, "retreat").read(qkv).read(&call.solved);
    let launch = launch.read(&call.pairs).read(&call.scales).read(dy_blc).write(&gradients.qkv);
    let launch = launch.write(&dstates).read(dstate).write(gradients.state.as_ref());
    let bytes = gpu::bytes(&[qkv, &call.solved, &call.pairs, dy_blc, &dstates]);
    let flops = value * value_width * (3 * width + 2 * CHUNK);
    call.by_strip(call.prepared(launch, 2 * call.stage(2, 2), bytes, flops)?)?;

    let launch = call.kernel(&FAMILY_TILES_BACKWARD, "gradients").read(qkv).read(&call.scales);
    let launch = launch.read(&x).read(&states).read(&dstates).read(dy_blc).write(&gradients.qkv);
    let launch = launch.write(&gradients.rate).write(&gradients.decay).read(documents);
    let bytes = gpu::bytes(&[qkv, &gradients.qkv, &x, dy_blc, &states, &dstates]);
    let flops = value * (3 * width * value_width + 2 * CHUNK * (value_width + 2 * width));
    let numbers = GRADIENT_SCALES * CHUNK * DType::F32.bytes();
    let stage = (3 * CHUNK * PIECE * 2 + 2 * call.tile() + numbers).next_multiple_of(ALIGNMENT);
    let shared = 4 * call.tile() + 2 * stage + 4 * CHUNK * CHUNK * 2;
    let jobs = gpu::word(operator, geometry.batch * key * geometry.chunks())?;
    let launch = call.prepared(launch, shared, bytes, flops)?.u32(jobs);
    let blocks = jobs.min(qkv.device().description().multiprocessors);
    Ok(launch.launch([blocks, 1, 1], GRADIENT_THREADS)?)
}
