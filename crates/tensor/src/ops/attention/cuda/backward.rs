//! Launches of the backward pass.

use device::cuda::Launch;
use device::{Region, Schedule};

use super::call::{Call, Form, array_bytes, f32_shared, hopper_threads};
use super::families::{BACKWARD_COLUMNS, F32, F32Variant, FAMILY_F32, FAMILY_PARTS, THREADS};
use super::half::Half;
use super::hopper::{COLUMNS, CONSUMER_ROWS, HopperKernels};
use crate::ops::attention::geometry::{Geometry, KEY, QUERY, VALUE};
use crate::ops::attention::heads::Qkv;
use crate::ops::attention::masks::Masks;
use crate::ops::attention::workspace;
use crate::ops::gpu;
use crate::{Result, Tensor};

/// Operands and workspace of the backward pass.
pub(crate) struct Operands<'a> {
    pub(crate) dy: &'a Tensor,
    pub(crate) qkv: &'a Qkv<Tensor>,
    pub(crate) output: &'a Tensor,
    pub(crate) logsumexp: &'a Tensor,
    pub(crate) masks: Masks<'a>,
    pub(crate) workspace: &'a Tensor,
    /// Gradients of keys, then of values, by parts of their query heads; empty without parts.
    pub(crate) parts: &'a Tensor,
}

device::names! {
    /// The two kernels of a backward pass; they write to different arrays.
    #[derive(Clone, Copy)]
    enum Owner {
        /// The kernel that computes the gradients of queries.
        Query = "backward_query",
        /// The kernel that computes the gradients of keys and values.
        KeyValue = "backward_key_value",
    }
}

impl Owner {
    /// Returns the number of matmuls that the kernel makes of each pair of tiles.
    fn matmuls(self) -> u32 {
        match self {
            Owner::Query => 3,
            Owner::KeyValue => 4,
        }
    }

    fn is_keys(self) -> bool {
        matches!(self, Owner::KeyValue)
    }
}

/// The backward pass of one call.
struct Backward<'a> {
    call: Call<'a>,
    operands: &'a Operands<'a>,
    gradients: &'a Qkv<Tensor>,
}

/// Computes the gradients of `qkv`: first the statistics of each row, then the gradients, one kernel per
/// [`Owner`].
pub(crate) fn backward(
    operator: &'static str,
    geometry: Geometry,
    operands: &Operands<'_>,
    gradients: &Qkv<Tensor>,
) -> Result<()> {
    let mut tensors = vec![operands.dy, operands.output];
    tensors.extend(gradients.arrays());
    let call = Call::new(operator, geometry, operands.qkv, operands.masks, &tensors)?;
    let backward = Backward { call, operands, gradients };
    match backward.call.form {
        Form::F32 { sizes, variant } => {
            backward.delta(variant)?;
            Owner::ALL.into_iter().try_for_each(|owner| backward.f32(owner, sizes, variant))?;
        }
        Form::Half(half) => backward.on_any_gpu(half)?,
        Form::Hopper { backward: kernels, any, .. } => {
            backward.statistics(any)?;
            Owner::ALL.into_iter().try_for_each(|owner| backward.hopper(owner, kernels))?;
        }
    }
    if backward.has_parts() {
        return [KEY, VALUE].into_iter().try_for_each(|part| backward.add_parts(operator, part));
    }
    Ok(())
}

impl<'a> Backward<'a> {
    /// Adds outputs, `dy`, queries, keys and values to a launch. Its cost counts each operand as read once.
    fn kernel(&self, owner: Owner, launch: Launch<'a>) -> Launch<'a> {
        let Backward { call, operands, gradients } = self;
        let [dq, mut dk, mut dv] = call.regions(gradients);
        let heads = call.geometry.heads;
        if self.has_parts() {
            [dk, dv] = self.parts();
        }
        let (launch, columns, [of_keys, of_values]) = match owner {
            Owner::Query => (launch.write(dq), heads.query_columns(), [2, 1]),
            Owner::KeyValue => {
                let columns = (heads.key_columns() + heads.value_columns()) * call.parts();
                (launch.write(dk).write(dv).u32(call.members), columns, [2, 2])
            }
        };
        let rows = call.geometry.batch * call.geometry.time;
        let written = (rows * columns * call.dtype.bytes()) as u64;
        let read = gpu::bytes(&[operands.dy, operands.workspace]) + array_bytes(operands.qkv);
        let launch = call.read(launch.read(operands.dy), operands.qkv);
        launch.cost(read + written, call.geometry.flops(of_keys, of_values))
    }

    fn grid_heads(&self, owner: Owner) -> u32 {
        match owner {
            Owner::Query => self.call.heads,
            Owner::KeyValue => self.call.heads / self.call.members,
        }
    }

    fn has_parts(&self) -> bool {
        self.call.parts() > 1
    }

    /// Returns the memory of the gradients of keys and of values by parts of their query heads.
    fn parts(&self) -> [Region<'a>; 2] {
        let [of_keys, of_values] = workspace::parts(self.call.dtype, self.call.geometry);
        let all = self.operands.parts.region();
        [all.part(0, of_keys), all.part(of_keys, of_values)]
    }

    /// Adds the parts of the gradients of keys or of values, and measures the sums.
    fn add_parts(&self, operator: &'static str, part: usize) -> Result<()> {
        let Backward { call, gradients, .. } = self;
        let word = |size| gpu::word(operator, size);
        let Geometry { batch, keys, heads, parts, .. } = call.geometry;
        let layout = parts[part];
        let width = call.geometry.width(part);
        let source = self.parts()[part - KEY];
        let target = call.regions(gradients)[part];
        let lanes = gpu::lanes(call.dtype);
        let is_whole = [width, layout.stride, layout.first].iter().all(|size| size.is_multiple_of(lanes));
        let (name, lanes) = if is_whole && call.aligned { ("add", lanes) } else { ("add_single", 1) };
        let launch = call.kernel(&FAMILY_PARTS, 0, name).read(source).write(target);
        let launch = launch.write(gradients.arrays()[layout.array].maxima());
        let launch = launch.u32(call.batch).u32(word(call.geometry.end())?).u32(word(keys)?);
        let launch = launch.u32(word(heads.key_value)?).u32(word(call.parts())?).u32(word(width)?);
        let elements = batch * call.geometry.end() * heads.key_value * width;
        let moved = source.bytes + elements * call.dtype.bytes();
        let launch = launch.u32(word(layout.stride)?).cost(moved as u64, 0);
        let threads = word(elements / lanes)?;
        Ok(launch.launch([threads.div_ceil(gpu::THREADS), 1, 1], gpu::THREADS)?)
    }

    /// Returns the number of positions of a sequence whose gradients the kernel computes.
    fn rows_of(&self, owner: Owner) -> u32 {
        match owner {
            Owner::Query => self.call.time,
            Owner::KeyValue => self.call.first + self.call.time,
        }
    }

    /// Returns the grid with one block for every `rows` rows that the kernel writes.
    fn grid(&self, owner: Owner, rows: u32) -> [u32; 3] {
        match owner {
            Owner::Query => self.call.grid(rows, self.grid_heads(owner)),
            Owner::KeyValue => self.call.grid_of_keys(rows, self.grid_heads(owner)),
        }
    }

    /// Returns the number of rows: batch · time · query heads.
    fn rows(&self) -> usize {
        let Geometry { batch, time, heads, .. } = self.call.geometry;
        batch * time * heads.query
    }

    /// Computes the log-sum-exps in base 2, and delta (the sum of dy · output), of every row.
    fn statistics(&self, half: Half) -> Result<()> {
        let Backward { call, operands, .. } = self;
        let launch = call.kernel(half.family, half.variant, "statistics");
        let launch = launch
            .write(operands.workspace)
            .read(operands.dy)
            .read(operands.output)
            .read(operands.logsumexp)
            .u32(call.batch)
            .u32(call.time)
            .u32(call.heads)
            .u32(u32::from(call.aligned));
        let launch = if half.padded { launch.u32(call.width) } else { launch };
        call.values(launch)
            .cost(gpu::bytes(&[operands.dy, operands.output, operands.logsumexp, operands.workspace]), 0)
            .launch([self.rows().div_ceil(THREADS as usize / 8) as u32, 1, 1], THREADS)?;
        Ok(())
    }

    /// Adds the words that receive the largest magnitudes of the gradients that this kernel computes.
    fn measured<'b>(&self, launch: Launch<'b>, owner: Owner) -> Launch<'b> {
        let maxima = |part: usize| {
            let array = self.call.geometry.parts[part].array;
            self.gradients.arrays()[array].maxima()
        };
        match owner {
            Owner::Query => launch.write(maxima(QUERY)),
            // Sums of parts are measured instead.
            Owner::KeyValue if self.has_parts() => launch.write(None::<&Tensor>).write(None::<&Tensor>),
            Owner::KeyValue => launch.write(maxima(KEY)).write(maxima(VALUE)),
        }
    }

    fn on_any_gpu(&self, half: Half) -> Result<()> {
        self.statistics(half)?;
        Owner::ALL.into_iter().try_for_each(|owner| self.half(owner, half))
    }

    fn half(&self, owner: Owner, half: Half) -> Result<()> {
        let call = &self.call;
        let block = half.backward();
        let launch = self.kernel(owner, call.kernel(half.family, half.variant, owner.name()));
        let launch = call.layout(launch.read(self.operands.workspace).u32(call.time));
        let launch = launch.f32(call.geometry.scale()).u32(u32::from(call.aligned));
        let launch = self.measured(call.masked(launch), owner);
        let launch = if half.padded { launch.u32(call.width) } else { launch };
        let grid = self.grid(owner, block.rows);
        let tile = [block.rows, BACKWARD_COLUMNS];
        let tiling = call.tiling(owner.is_keys(), tile, half.columns, owner.matmuls(), block.schedule());
        call.values(launch).shared(block.shared).tiled(tiling).launch(grid, block.threads)?;
        Ok(())
    }

    fn hopper(&self, owner: Owner, kernels: HopperKernels) -> Result<()> {
        let (call, HopperKernels { family, variant, sizes, tiles, shared }) = (&self.call, kernels);
        let launch = self.kernel(owner, call.kernel(family, variant, owner.name()));
        let launch = launch.read(self.operands.workspace);
        let launch = call.layout(launch.u32(call.batch).u32(call.time)).f32(call.geometry.scale());
        let [rows, heads] = [self.rows_of(owner), self.grid_heads(owner)];
        let tile = [tiles * CONSUMER_ROWS, COLUMNS];
        call.pairs(self.measured(launch, owner))
            .shared(shared)
            .tiled(call.tiling(owner.is_keys(), tile, call.width, owner.matmuls(), Schedule::Pairs))
            .launch(call.hopper_grid(rows, tiles, heads), hopper_threads(sizes.consumers))?;
        Ok(())
    }

    /// Computes delta, the sum of dy · output, of every row.
    fn delta(&self, variant: usize) -> Result<()> {
        let Backward { call, operands, .. } = self;
        call.kernel(&FAMILY_F32, variant, "delta")
            .write(operands.workspace)
            .read(operands.dy)
            .read(operands.output)
            .u32(call.batch)
            .u32(call.time)
            .u32(call.heads)
            .u32(call.value_width)
            .cost(gpu::bytes(&[operands.dy, operands.output, operands.workspace]), 0)
            .launch([self.rows().div_ceil(THREADS as usize / 32) as u32, 1, 1], THREADS)?;
        Ok(())
    }

    fn f32(&self, owner: Owner, sizes: usize, variant: usize) -> Result<()> {
        let call = &self.call;
        let launch = self.kernel(owner, call.kernel(&FAMILY_F32, variant, owner.name()));
        let launch = launch.read(self.operands.logsumexp).read(self.operands.workspace);
        let launch = call.layout(launch.u32(call.time)).u32(call.width).f32(call.geometry.scale());
        let F32Variant { tile, width, resident } = F32[sizes];
        let grid = self.grid(owner, tile);
        let schedule = Schedule::Blocks { resident: resident[1 + usize::from(owner.is_keys())] };
        call.values(call.masked(launch))
            .shared(f32_shared(4, F32[sizes]))
            .tiled(call.tiling(owner.is_keys(), [tile; 2], width, owner.matmuls(), schedule))
            .launch(grid, THREADS)?;
        Ok(())
    }
}
