//! Launches of the kernels on tensor cores, `kernels/state_space_tiles.cu` and
//! `kernels/state_space_tiles_backward.cu`.

use device::cuda::Launch;
use device::{Family, Function, Region};

use crate::ops::kernels::family;
use crate::ops::state_space_scan::heads::{CHUNK, StateHeads};
use crate::ops::state_space_scan::operands::{Gradients, Operands};
use crate::ops::state_space_scan::workspace::{PART_HEADS, SCALES, SLICE, TILE_WIDTHS, TileSizes, regions};
use crate::ops::{check, gpu};
use crate::{DType, Result, Tensor};

/// Threads of a warp.
const WARP: u32 = 32;
/// Heads of a block that computes decays and time steps, a warp each.
const SCALE_HEADS: u32 = 8;
/// Threads of a block that computes pairs of tokens: a warp for each 16 tokens of a chunk.
const PAIR_THREADS: u32 = 128;
/// Maximum number of a group's heads whose pairs a block computes.
const PAIR_HEADS: usize = 8;
/// Threads of a block that computes a chunk's gradients: two warps for each 16 of its tokens.
const GRADIENT_THREADS: u32 = 256;
/// Threads of a block that adds gradients of B and C, each of [`JOINED`] columns.
const JOIN_THREADS: u32 = 256;
/// Columns that a thread adds.
const JOINED: usize = 4;
/// Columns of x per block of the kernels that go through the chunks in order; a thread has half a column.
const STRIP: usize = 128;
/// Columns of x per block of these kernels if heads are narrow.
const NARROW_STRIP: usize = 64;
/// Columns of x in a piece of the gradients.
const PIECE: usize = 64;
/// Bytes to which tiles are aligned in shared memory.
const ALIGNMENT: usize = 1024;

const CONSTANTS: &[(&str, u32)] = &[
    ("CHUNK", CHUNK as u32),
    ("SCALE_HEADS", SCALE_HEADS),
    ("PAIR_THREADS", PAIR_THREADS),
    ("PAIR_HEADS", PAIR_HEADS as u32),
    ("PART_HEADS", PART_HEADS as u32),
    ("GRADIENT_THREADS", GRADIENT_THREADS),
    ("JOIN_THREADS", JOIN_THREADS),
    ("STRIP", STRIP as u32),
    ("VALUE_PIECE", PIECE as u32),
];
const IN_F16: (&str, u32) = ("HALF_IS_F16", 1);
const VARIANTS: &[&[(&str, u32)]] = &[
    &[("WIDTH", TILE_WIDTHS[0] as u32)],
    &[("WIDTH", TILE_WIDTHS[1] as u32)],
    &[("WIDTH", TILE_WIDTHS[2] as u32)],
    &[("WIDTH", TILE_WIDTHS[0] as u32), IN_F16],
    &[("WIDTH", TILE_WIDTHS[1] as u32), IN_F16],
    &[("WIDTH", TILE_WIDTHS[2] as u32), IN_F16],
];

pub(crate) static FAMILY_TILES: Family = family!(
    "state_space_tiles",
    headers: [
        "hopper.cuh",
        "recurrent_chunk.cuh",
        "recurrent_tiles.cuh",
        "state_space_steps.cuh",
        "state_space_tiles.cuh",
        "tensor_cores.cuh"
    ],
    constants: CONSTANTS,
    variants: VARIANTS,
);
pub(crate) static FAMILY_TILES_BACKWARD: Family = family!(
    "state_space_tiles_backward",
    headers: [
        "hopper.cuh",
        "recurrent_chunk.cuh",
        "recurrent_tiles.cuh",
        "state_space_tiles.cuh",
        "tensor_cores.cuh"
    ],
    constants: CONSTANTS,
    variants: VARIANTS,
);

/// A call of an operator.
struct Call<'a> {
    operator: &'static str,
    operands: Operands<'a>,
    tile_width: usize,
    /// Decays and time steps.
    scales: Region<'a>,
    /// Weights of pairs of tokens; empty if the call does not use them.
    pairs: Region<'a>,
    /// States before chunks, and gradients of those after them; empty but for the gradients.
    states: [Region<'a>; 2],
    /// Products of tokens' rows, and sums of the gradients of B and C; empty but for the gradients.
    products: Region<'a>,
    sums: Region<'a>,
    /// Number of parts of a group's heads that have sums.
    parts: usize,
}

impl<'a> Call<'a> {
    fn new(
        operator: &'static str,
        operands: Operands<'a>,
        (workspace, tile_width): (&'a Tensor, usize),
    ) -> Result<Self> {
        if !gpu::aligned(&[operands.xbc]) {
            return Err(check::wrong(operator, "xbc", operands.xbc, "rows aligned to 16 bytes".to_owned()));
        }
        let TileSizes { scales, pairs, states, products, sums, parts } =
            TileSizes::new(&operands, tile_width);
        let [scales, pairs, entering, leaving, products, sums] =
            regions(workspace, [scales, pairs, states, states, products, sums]);
        let states = [entering, leaving];
        Ok(Call { operator, operands, tile_width, scales, pairs, states, products, sums, parts })
    }

    fn kernel(&self, family: &'static Family, name: &'static str) -> Launch<'a> {
        let xbc = self.operands.xbc;
        let width = TILE_WIDTHS.iter().position(|width| *width == self.tile_width).unwrap_or_default();
        let variant = width + if xbc.dtype() == DType::F16 { TILE_WIDTHS.len() } else { 0 };
        xbc.device().kernel(Function::new(family, name).variant(variant).with_dtype(xbc.dtype()))
    }

    fn word(&self, size: usize) -> Result<u32> {
        gpu::word(self.operator, size)
    }

    /// Adds the sizes to a launch. Decays are by head.
    fn sized<'l>(&self, launch: Launch<'l>) -> Result<Launch<'l>> {
        let StateHeads { heads, groups, width, states } = self.operands.heads;
        let launch = launch.u32(self.word(self.operands.xbc.shape().dims()[1])?).u32(self.word(groups)?);
        let launch = launch.u32(self.word(heads)?).u32(self.word(states)?).u32(self.word(width)?);
        Ok(launch.u32(1).u32(self.word(self.operands.chunks())?))
    }

    /// Adds the limits of time steps to a launch.
    fn limited<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let [low, high] = self.operands.limits;
        launch.f32(low).f32(high)
    }

    /// Returns the grid with a block for each `rows` of each chunk.
    fn by_chunk(&self, rows: usize) -> Result<[u32; 3]> {
        let batch = self.operands.xbc.shape().dims()[0];
        Ok([self.word(self.operands.chunks())?, self.word(rows)?, self.word(batch)?])
    }

    /// Returns the FLOPs of `columns` multiplications for each token.
    fn flops(&self, columns: usize) -> u64 {
        (2 * self.operands.xbc.shape().rows() * columns) as u64
    }

    /// Returns the bytes of a tile of B or C.
    fn tile(&self) -> usize {
        CHUNK * self.tile_width * self.operands.xbc.dtype().bytes()
    }

    /// Computes decays and time steps.
    fn scale(&self) -> Result<()> {
        let Operands { dt, a_log, bias, documents, .. } = self.operands;
        let launch = self.kernel(&FAMILY_TILES, "scales").read(dt).read(a_log).read(bias).read(documents);
        let launch = self.limited(self.sized(launch.write(self.scales))?);
        let launch = launch.cost(gpu::bytes(&[dt]) + self.scales.bytes as u64, 0);
        let grid = self.by_chunk(self.operands.heads.heads.div_ceil(SCALE_HEADS as usize))?;
        Ok(launch.launch(grid, SCALE_HEADS * WARP)?)
    }

    /// Computes the pairs of tokens of all chunks.
    fn pair(&self) -> Result<()> {
        let StateHeads { heads, groups, width, states } = self.operands.heads;
        let rows = self.operands.xbc.shape().rows();
        let launch = self.kernel(&FAMILY_TILES, "pairs").read(self.operands.xbc).read(self.scales);
        let launch = self.sized(launch.read(self.operands.documents).write(self.pairs))?;
        let launch = launch.shared(self.word(ALIGNMENT + 2 * self.tile())?);
        let read = 2 * rows * groups * states * self.operands.xbc.dtype().bytes();
        let bytes = (read + self.scales.bytes + self.pairs.bytes) as u64;
        let launch = launch.cost(bytes, self.flops(groups * CHUNK * states / 2 + heads * width));
        let blocks = (heads / groups).div_ceil(PAIR_HEADS);
        Ok(launch.launch(self.by_chunk(groups * blocks)?, PAIR_THREADS)?)
    }

    /// Launches a kernel that goes through the chunks in order, with a block for each strip of a head.
    /// `is_whole`: it copies B, C and pairs of tokens, instead of either B or C.
    fn by_strip(&self, launch: Launch<'_>, is_whole: bool) -> Result<()> {
        let StateHeads { heads, width, .. } = self.operands.heads;
        let element = self.operands.xbc.dtype().bytes();
        let strip = if width <= NARROW_STRIP { NARROW_STRIP } else { STRIP };
        let more = if is_whole { self.tile() + CHUNK * CHUNK * element } else { 0 };
        let stage = self.tile() + CHUNK * strip * element + SCALES * CHUNK * DType::F32.bytes() + more;
        let launch = launch.shared(self.word(ALIGNMENT + 2 * stage)?);
        let batch = self.operands.xbc.shape().dims()[0];
        let grid = [self.word(width.div_ceil(strip))?, self.word(heads)?, self.word(batch)?];
        Ok(launch.launch(grid, self.word(2 * strip)?)?)
    }

    /// Moves states from `first` to `last`, and stores those before chunks in `states`.
    fn walk(
        &self,
        [first, last]: [Option<&Tensor>; 2],
        slots: usize,
        states: Option<Region<'_>>,
    ) -> Result<()> {
        let Operands { xbc, heads, .. } = self.operands;
        let launch = self.kernel(&FAMILY_TILES, "states").read(xbc).read(self.scales);
        let launch = launch.read(self.read_state(first)).write(last).u32(self.word(slots)?).write(states);
        let bytes = gpu::bytes(&[xbc]) + states.map_or(0, |states| states.bytes as u64);
        let launch = self.sized(launch)?.cost(bytes, self.flops(heads.columns() * heads.states));
        self.by_strip(launch, false)
    }

    /// Computes the gradients of B, C, time steps and weights from the states.
    fn gradients(&self, dy_blc: &Tensor, result: &Gradients) -> Result<()> {
        let Operands { xbc, a_log, documents, heads, .. } = self.operands;
        let [entering, leaving] = self.states;
        let element = xbc.dtype().bytes();
        let slices = heads.states.div_ceil(SLICE);
        let launch = self.kernel(&FAMILY_TILES_BACKWARD, "gradients").read(xbc).read(self.scales);
        let launch = launch.read(entering).read(leaving).read(dy_blc).read(documents);
        let launch = self.sized(launch.write(&result.xbc).write(self.sums).write(self.products))?;
        let chunks = xbc.shape().dims()[0] * self.operands.chunks();
        let jobs = self.word(chunks * heads.groups * self.parts * slices)?;
        let tile = self.tile().min(CHUNK * SLICE * element);
        let stage = 2 * CHUNK * PIECE * element + 2 * tile + SCALES * CHUNK * DType::F32.bytes();
        let shared = ALIGNMENT + 4 * tile + 2 * stage + CHUNK * CHUNK * element;
        let bytes = gpu::bytes(&[xbc, dy_blc, &result.xbc]) + 2 * entering.bytes as u64;
        let pairs = CHUNK / 2 * (heads.columns() + 2 * heads.heads * heads.states);
        let flops = self.flops(2 * heads.columns() * heads.states + pairs);
        let launch = launch.u32(self.word(self.parts)?).u32(jobs).shared(self.word(shared)?);
        let blocks = jobs.min(xbc.device().description().multiprocessors);
        launch.cost(bytes, flops).launch([blocks, 1, 1], GRADIENT_THREADS)?;
        if self.parts > 1 {
            self.join(&result.xbc)?;
        }
        let launch = self.kernel(&FAMILY_TILES_BACKWARD, "finish").read(self.products).read(self.scales);
        let launch = launch.read(a_log).read(documents).write(&result.dt).write(&result.sums);
        let launch = self.limited(self.sized(launch)?);
        let launch = launch.cost((self.products.bytes + self.scales.bytes) as u64, 0);
        let grid = self.by_chunk(heads.heads.div_ceil(SCALE_HEADS as usize))?;
        Ok(launch.launch(grid, SCALE_HEADS * WARP)?)
    }

    /// Adds the sums of parts of groups' heads.
    fn join(&self, dxbc_blc: &Tensor) -> Result<()> {
        let rows = dxbc_blc.shape().rows();
        let columns = 2 * self.operands.heads.groups * self.operands.heads.states;
        let launch = self.kernel(&FAMILY_TILES_BACKWARD, "join").read(self.sums).write(dxbc_blc);
        let launch = launch.u32(self.word(rows)?).u32(self.word(self.parts)?).u32(self.word(columns)?);
        let launch = launch.u32(self.word(dxbc_blc.shape().columns())?).cost(self.sums.bytes as u64, 0);
        let blocks = (rows * columns / JOINED).div_ceil(JOIN_THREADS as usize);
        Ok(launch.launch([self.word(blocks)?, 1, 1], JOIN_THREADS)?)
    }

    /// Returns the states before the first token, which only documents that start before it have.
    fn read_state<'s>(&self, state: Option<&'s Tensor>) -> Option<&'s Tensor> {
        state.filter(|_| self.operands.documents.is_some())
    }
}

/// Returns the number of sequences that have states.
fn slots(state: Option<&Tensor>) -> usize {
    state.map_or(0, |state| state.shape().dims()[0])
}

pub(super) fn forward(
    operator: &'static str,
    operands: Operands<'_>,
    state: Option<&Tensor>,
    workspace: (&Tensor, usize),
    y_blc: &Tensor,
) -> Result<()> {
    let call = Call::new(operator, operands, workspace)?;
    call.scale()?;
    call.pair()?;
    let Operands { xbc, d, heads, .. } = operands;
    let launch = call.kernel(&FAMILY_TILES, "outputs").read(xbc).read(call.pairs).read(call.scales).read(d);
    let launch = launch.read(call.read_state(state)).write(state).u32(call.word(slots(state))?);
    let launch = call.sized(launch.write(y_blc))?;
    let bytes = gpu::bytes(&[xbc, y_blc]) + call.pairs.bytes as u64;
    let launch = launch.cost(bytes, call.flops(heads.columns() * (2 * heads.states + CHUNK / 2)));
    call.by_strip(launch, true)
}

pub(super) fn advance(
    operator: &'static str,
    operands: Operands<'_>,
    state: &Tensor,
    workspace: (&Tensor, usize),
) -> Result<()> {
    let call = Call::new(operator, operands, workspace)?;
    call.scale()?;
    call.walk([Some(state); 2], slots(Some(state)), None)
}

pub(super) fn retreat(
    operator: &'static str,
    dy_blc: &Tensor,
    operands: Operands<'_>,
    workspace: (&Tensor, usize),
    gradient: &Tensor,
) -> Result<()> {
    let call = Call::new(operator, operands, workspace)?;
    call.scale()?;
    let Operands { xbc, heads, .. } = operands;
    let launch = call.kernel(&FAMILY_TILES_BACKWARD, "retreat_state").read(xbc).read(call.scales);
    let launch = launch.read(dy_blc).write(gradient).u32(call.word(slots(Some(gradient)))?);
    let launch = call.sized(launch)?.cost(gpu::bytes(&[dy_blc]), call.flops(heads.columns() * heads.states));
    call.by_strip(launch, false)
}

pub(super) fn backward_input(
    operator: &'static str,
    (dy_blc, ends): (&Tensor, Option<[&Tensor; 2]>),
    operands: Operands<'_>,
    workspace: (&Tensor, usize),
    result: &Gradients,
) -> Result<()> {
    let call = Call::new(operator, operands, workspace)?;
    let [first, last] = [0, 1].map(|part| ends.map(|ends| ends[part]));
    let [entering, leaving] = call.states;
    let Operands { xbc, d, heads, .. } = operands;
    let states = heads.columns() * heads.states;
    call.scale()?;
    call.pair()?;
    call.walk([first, None], slots(first), Some(entering))?;

    let launch = call.kernel(&FAMILY_TILES_BACKWARD, "retreat").read(xbc).read(call.pairs).read(call.scales);
    let launch = launch.read(d).read(dy_blc).write(&result.xbc).write(leaving).read(last);
    let launch = call.sized(launch.u32(call.word(slots(last))?))?;
    let bytes = gpu::bytes(&[xbc, dy_blc]) + (call.pairs.bytes + leaving.bytes) as u64;
    let launch = launch.cost(bytes, call.flops(2 * states + heads.columns() * CHUNK / 2));
    call.by_strip(launch, true)?;

    call.gradients(dy_blc, result)
}
