//! Launches of `kernels/experts_linear.cu` that sum over rows of groups: gradients of weights and biases.
//! Sums are divided into parts, which are added in order, so that few results occupy the whole device.

use device::{DType, Device, Function};
use device::{Tiling, Units, Work};

use super::cuda::{FAMILY_LINEAR, PART_ROWS, TILE, column_tiles, linear};
use super::hopper::Matmul;
use crate::ops::GradientTarget;
use crate::ops::gpu;
use crate::ops::routing::Routes;
use crate::{Result, Tensor};

/// Maximum number of parts of a router's rows.
const ROUTER_PARTS: usize = 16;

/// Returns an upper bound of the number of parts of all groups: each expert's last part may have fewer rows.
fn most_parts(routes: &Routes) -> usize {
    routes.slots().div_ceil(PART_ROWS as usize) + routes.experts()
}

fn bytes_of_parts(parts: usize, elements: usize) -> usize {
    parts * elements * size_of::<f32>()
}

/// Returns the bytes of the parts of the gradient of a weight; 0 if a block of threads adds all rows of a
/// group.
///
/// # Errors
/// Sizes of more than 32 bits.
pub(super) fn weight_workspace_bytes(
    operator: &'static str,
    [dy_so, x_si, weight]: [&Tensor; 3],
    routes: &Routes,
) -> Result<usize> {
    let sizes = [dy_so, x_si].map(|operand| operand.shape().columns());
    // With more tiles, the tiles of all experts occupy the device.
    let has_few_tiles = sizes.iter().any(|size| *size <= TILE as usize);
    let is_general = Matmul::new(operator, [dy_so, x_si, weight], routes, sizes)?.is_none();
    Ok(match has_few_tiles && is_general {
        true => bytes_of_parts(most_parts(routes), sizes.iter().product()),
        false => 0,
    })
}

/// Computes weight (+)= dyᵀ · x of each group, with workspace of [`weight_workspace_bytes`].
pub(super) fn backward_weight(
    operator: &'static str,
    (dy_so, x_si): (&Tensor, &Tensor),
    routes: &Routes,
    parts: &Tensor,
    weight: &GradientTarget,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let sizes = [dy_so.shape().columns(), x_si.shape().columns()];
    if let Some(matmul) = Matmul::new(operator, [dy_so, x_si, &weight.tensor], routes, sizes)? {
        return matmul.backward_weight(weight);
    }
    let [outputs, inputs] = [word(sizes[0])?, word(sizes[1])?];
    let experts = word(routes.experts())?;
    let flops = Work::flops_of_products([routes.slots(), sizes[0], sizes[1]]);
    let device = dy_so.device();
    if parts.elements() == 0 {
        let names = ["backward_weight", "backward_weight_wide"];
        let launch = device.kernel(linear(names, dy_so.dtype(), weight.tensor.dtype()));
        let launch = launch.read(dy_so).read(x_si).read(&routes.offsets).write(&weight.tensor);
        let launch = launch.u32(outputs).u32(inputs).u32(u32::from(weight.accumulate));
        let bytes = gpu::bytes(&[dy_so, x_si]) + weight.moved();
        let grid = [inputs.div_ceil(TILE), outputs.div_ceil(TILE), experts];
        return Ok(launch.cost(bytes, flops).launch(grid, gpu::THREADS)?);
    }
    let launch = device.kernel(Function::new(&FAMILY_LINEAR, "weight_parts").with_dtype(dy_so.dtype()));
    let launch = launch.read(dy_so).read(x_si).read(&routes.offsets).write(parts);
    let launch = launch.u32(experts).u32(outputs).u32(inputs);
    let launch = launch.cost(gpu::bytes(&[dy_so, x_si]) + parts.bytes() as u64, flops);
    let tiles = [column_tiles(inputs), column_tiles(outputs)];
    let each = routes.slots().div_ceil(routes.experts().max(1));
    let launch = launch.tiled(tiling(tiles, routes.experts() * parts_of(each), each, sizes));
    launch.launch([tiles[0], tiles[1], word(most_parts(routes))?], gpu::THREADS)?;
    sum(operator, parts, dy_so.dtype(), Some(routes), weight)
}

/// Returns the number of parts of `rows` rows of a group.
fn parts_of(rows: usize) -> usize {
    rows.div_ceil(PART_ROWS as usize)
}

/// Returns how parts of at most `rows` rows each are divided, with `tiles` tiles each.
fn tiling(tiles: [u32; 2], parts: usize, rows: usize, [outputs, inputs]: [usize; 2]) -> Tiling {
    let units = tiles.iter().map(|tiles| u64::from(*tiles)).product::<u64>() * parts as u64;
    let whole = |size: usize, tiles: u32| size.div_ceil(tiles as usize).next_multiple_of(16) * tiles as usize;
    let rows = rows.min(PART_ROWS as usize);
    let flops = Work::flops_of_products([parts, rows, whole(inputs, tiles[0]), whole(outputs, tiles[1])]);
    Tiling { units: Units::Equal { count: units, flops }, drops: false }
}

/// Adds the parts of each group to `target`; of one group without `routes`, to which all parts belong.
fn sum(
    operator: &'static str,
    parts: &Tensor,
    dtype: DType,
    routes: Option<&Routes>,
    target: &GradientTarget,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let elements = target.tensor.elements();
    if elements == 0 {
        return Ok(());
    }
    let groups = routes.map_or(1, Routes::experts);
    let of_group = elements / groups;
    let all = parts.bytes() / (of_group * size_of::<f32>());
    let kernel = linear(["sum_parts", "sum_parts_wide"], dtype, target.tensor.dtype());
    let launch = target.tensor.device().kernel(kernel).read(parts).read(routes.map(|routes| &routes.offsets));
    let launch = launch.write(&target.tensor).u32(word(all)?).u32(word(of_group)?);
    let launch = launch.u32(u32::from(target.accumulate)).cost(parts.bytes() as u64 + target.moved(), 0);
    Ok(launch.launch([word(of_group)?.div_ceil(gpu::THREADS), word(groups)?, 1], gpu::THREADS)?)
}

/// Allocates the parts of the gradient of a bias of `outputs` elements for each expert.
pub(super) fn bias_workspace(
    device: &Device,
    operator: &'static str,
    routes: &Routes,
    outputs: usize,
) -> Result<Tensor> {
    Tensor::workspace(device, operator, bytes_of_parts(most_parts(routes), outputs))
}

/// Computes bias (+)= Σ of dy over the rows of each group, weighted if `is_weighted`, with workspace of
/// [`bias_workspace`].
pub(super) fn backward_bias(
    operator: &'static str,
    dy_so: &Tensor,
    (routes, is_weighted): (&Routes, bool),
    parts: &Tensor,
    bias: &GradientTarget,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let outputs = word(dy_so.shape().columns())?;
    if outputs == 0 {
        return Ok(());
    }
    let kernel = Function::new(&FAMILY_LINEAR, "bias_parts").with_dtype(dy_so.dtype());
    let launch = dy_so.device().kernel(kernel).read(dy_so);
    let launch = launch.read(is_weighted.then_some(&routes.weights)).read(&routes.sources);
    let launch = launch.read(&routes.offsets).write(parts).u32(word(routes.experts())?).u32(outputs);
    let launch = launch.cost((dy_so.bytes() + parts.bytes()) as u64, dy_so.elements() as u64);
    let grid = [outputs.div_ceil(gpu::THREADS), word(most_parts(routes))?, 1];
    launch.launch(grid, gpu::THREADS)?;
    sum(operator, parts, dy_so.dtype(), Some(routes), bias)
}

/// Returns the rows of each part of a router's `rows` rows.
fn router_rows(rows: usize) -> usize {
    rows.div_ceil(ROUTER_PARTS).max(PART_ROWS as usize).next_multiple_of(TILE as usize)
}

/// Returns the bytes of the parts of the gradient of a router's weight of `elements`, for `rows` rows.
pub(in crate::ops) fn router_workspace_bytes(rows: usize, elements: usize) -> usize {
    bytes_of_parts(rows.div_ceil(router_rows(rows)), elements)
}

/// Computes the gradient weight (+)= dyᵀ · x of a router, with dy in f32 and workspace of
/// [`router_workspace_bytes`].
pub(in crate::ops) fn router_weight(
    operator: &'static str,
    (dy_te, x_td): (&Tensor, &Tensor),
    parts: &Tensor,
    weight: &GradientTarget,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let all_rows = dy_te.shape().rows();
    let each = router_rows(all_rows);
    let sizes = [dy_te.shape().columns(), x_td.shape().columns()];
    let [rows, experts, inputs] = [word(all_rows)?, word(sizes[0])?, word(sizes[1])?];
    let count = all_rows.div_ceil(each);
    let kernel = Function::new(&FAMILY_LINEAR, "router_parts").with_dtype(x_td.dtype());
    let launch = dy_te.device().kernel(kernel).read(dy_te).read(x_td).write(parts);
    let launch = launch.u32(rows).u32(word(each)?).u32(experts).u32(inputs);
    let tiles = [column_tiles(inputs), column_tiles(experts)];
    let flops = Work::flops_of_products([x_td.elements(), sizes[0]]);
    let launch = launch.cost(gpu::bytes(&[dy_te, x_td]) + parts.bytes() as u64, flops);
    let launch = launch.tiled(tiling(tiles, count, each.min(all_rows), sizes));
    launch.launch([tiles[0], tiles[1], word(count)?], gpu::THREADS)?;
    sum(operator, parts, x_td.dtype(), None, weight)
}
