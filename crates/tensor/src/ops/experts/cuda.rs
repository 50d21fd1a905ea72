//! Launches of `kernels/experts.cu` and `kernels/experts_linear.cu`.

use device::cuda::Launch;
use device::{DType, Family, Function};

use super::hopper::Matmul;
use super::parts::AdaptedParts;
use crate::ops::GradientTarget;
use crate::ops::gate::Gate;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::ops::routing::Routes;
use crate::{Result, Tensor};

/// Threads of a warp. A warp moves one row.
const WARP: u32 = 32;
/// Rows per block: one per warp.
const ROWS: u32 = gpu::THREADS / WARP;
/// Rows and columns of a tile of a matmul.
const TILE: u32 = 64;

pub(crate) static FAMILY: Family =
    family!("experts", headers: ["activation.cuh", "gate.cuh"], constants: &[gpu::THREADS_CONSTANT]);

pub(crate) static FAMILY_LINEAR: Family = family!("experts_linear", constants: &[gpu::THREADS_CONSTANT]);

/// Returns the matmul kernel for operands of `dtype` and results of `out`.
fn linear(names: [&'static str; 2], dtype: DType, out: DType) -> Function {
    let name = names[usize::from(out != dtype)];
    Function::new(&FAMILY_LINEAR, name).with_dtype(dtype)
}

/// Returns 1 if rows are moved 16 bytes at a time, else 0.
fn vector(columns: usize, tensors: &[&Tensor]) -> u32 {
    let whole = columns.is_multiple_of(gpu::lanes(tensors[0].dtype()));
    u32::from(whole && gpu::aligned(tensors))
}

/// Returns an upper bound of the number of row tiles over all groups: each expert's last tile may be partial.
fn row_tiles(operator: &'static str, routes: &Routes) -> Result<u32> {
    gpu::word(operator, routes.slots().div_ceil(TILE as usize) + routes.experts())
}

/// Computes y = x · Wᵀ + b of each group.
pub(super) fn forward(
    operator: &'static str,
    (x, weight, bias): (&Tensor, &Tensor, Option<&Tensor>),
    routes: &Routes,
    y: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [experts, outputs] = [word(routes.experts())?, word(y.shape().columns())?];
    if y.elements() == 0 {
        return Ok(());
    }
    let sizes = [y.shape().columns(), x.shape().columns()];
    if let Some(matmul) = Matmul::new(operator, [x, weight, y], routes, sizes)? {
        return matmul.forward(bias);
    }
    let kernel = linear(["forward", "forward_wide"], x.dtype(), y.dtype());
    let launch = x.device().kernel(kernel).read(x).read(weight).read(bias).read(&routes.offsets).write(y);
    let launch = launch.u32(experts).u32(outputs).u32(word(x.shape().columns())?);
    let grid = [outputs.div_ceil(TILE), row_tiles(operator, routes)?, 1];
    Ok(launch.cost(gpu::bytes(&[x, weight, y]), 0).launch(grid, gpu::THREADS)?)
}

/// Computes dx = dy · W of each group.
pub(super) fn backward_input(
    operator: &'static str,
    (dy, weight): (&Tensor, &Tensor),
    routes: &Routes,
    dx: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [experts, inputs] = [word(routes.experts())?, word(dx.shape().columns())?];
    if dx.elements() == 0 {
        return Ok(());
    }
    let sizes = [dy.shape().columns(), dx.shape().columns()];
    if let Some(matmul) = Matmul::new(operator, [dy, weight, dx], routes, sizes)? {
        return matmul.backward_input();
    }
    let kernel = linear(["backward_input", "backward_input_wide"], dy.dtype(), dx.dtype());
    let launch = dy.device().kernel(kernel).read(dy).read(weight).read(&routes.offsets).write(dx);
    let launch = launch.u32(experts).u32(word(dy.shape().columns())?).u32(inputs);
    let grid = [inputs.div_ceil(TILE), row_tiles(operator, routes)?, 1];
    Ok(launch.cost(gpu::bytes(&[dy, weight, dx]), 0).launch(grid, gpu::THREADS)?)
}

/// Computes weight (+)= dyᵀ · x of each group.
pub(super) fn backward_weight(
    operator: &'static str,
    (dy, x): (&Tensor, &Tensor),
    routes: &Routes,
    weight: &GradientTarget,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let sizes = [dy.shape().columns(), x.shape().columns()];
    if let Some(matmul) = Matmul::new(operator, [dy, x, &weight.tensor], routes, sizes)? {
        return matmul.backward_weight(weight.accumulate);
    }
    let [outputs, inputs] = [word(sizes[0])?, word(sizes[1])?];
    let names = ["backward_weight", "backward_weight_wide"];
    let launch = dy.device().kernel(linear(names, dy.dtype(), weight.tensor.dtype()));
    let launch = launch.read(dy).read(x).read(&routes.offsets).write(&weight.tensor).u32(outputs).u32(inputs);
    let launch = launch.u32(u32::from(weight.accumulate)).cost(gpu::bytes(&[dy, x, &weight.tensor]), 0);
    let grid = [inputs.div_ceil(TILE), outputs.div_ceil(TILE), word(routes.experts())?];
    Ok(launch.launch(grid, gpu::THREADS)?)
}

/// Computes bias (+)= Σ of dy over the rows of each group, weighted if `is_weighted`.
pub(super) fn backward_bias(
    operator: &'static str,
    dy: &Tensor,
    (routes, is_weighted): (&Routes, bool),
    bias: &GradientTarget,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let outputs = word(dy.shape().columns())?;
    let kernel = linear(["backward_bias", "backward_bias_wide"], dy.dtype(), bias.tensor.dtype());
    let launch = dy.device().kernel(kernel).read(dy);
    let launch = launch.read(is_weighted.then_some(&routes.weights)).read(&routes.sources);
    let launch = launch.read(&routes.offsets).write(&bias.tensor).u32(outputs);
    let launch = launch.u32(u32::from(bias.accumulate)).cost(dy.bytes() as u64, dy.elements() as u64);
    let grid = [outputs.div_ceil(gpu::THREADS), word(routes.experts())?, 1];
    Ok(launch.launch(grid, gpu::THREADS)?)
}

/// Copies the rows of `x` to `gathered`, in the order of experts.
pub(super) fn gather(operator: &'static str, x: &Tensor, routes: &Routes, gathered: &Tensor) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let slots = word(routes.slots())?;
    let columns = x.shape().columns();
    if gathered.elements() == 0 {
        return Ok(());
    }
    let launch = x.device().kernel(Function::new(&FAMILY, "gather").with_dtype(x.dtype()));
    let launch = launch.read(x).read(&routes.sources).write(gathered);
    let launch = launch.u32(slots).u32(word(columns)?).u32(word(routes.per_token())?);
    let launch = launch.u32(vector(columns, &[x, gathered])).cost(2 * gathered.bytes() as u64, 0);
    Ok(launch.launch([slots.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Computes out = the sum over each token's choices of `y`, plus weighted biases.
pub(super) fn sum(
    operator: &'static str,
    (y, bias): (&Tensor, Option<&Tensor>),
    routes: &Routes,
    out: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let rows = word(routes.rows())?;
    let columns = y.shape().columns();
    if out.elements() == 0 {
        return Ok(());
    }
    // With a bias of a half type, f32 rows have kernels of their own.
    let (name, dtype) = match bias.map(Tensor::dtype).filter(|dtype| *dtype != y.dtype()) {
        Some(half) => ("combine_wide", half),
        None => ("combine", y.dtype()),
    };
    let launch = y.device().kernel(Function::new(&FAMILY, name).with_dtype(dtype));
    let launch = launch.read(y).read(bias).read(&routes.slots);
    let launch = launch.read(&routes.choices).read(&routes.weights).write(out);
    let launch = launch.u32(rows).u32(word(columns)?).u32(word(routes.per_token())?);
    let aligned = bias.is_none_or(|bias| gpu::aligned(&[bias]));
    let launch = launch.u32(if aligned { vector(columns, &[y, out]) } else { 0 });
    let launch = launch.cost(gpu::bytes(&[y, out]), y.elements() as u64);
    Ok(launch.launch([rows.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Multiplies each row of experts by the weight of its choice.
pub(super) fn weigh(operator: &'static str, hidden: &Tensor, routes: &Routes) -> Result<()> {
    let slots = gpu::word(operator, routes.slots())?;
    let columns = hidden.shape().columns();
    if hidden.elements() == 0 {
        return Ok(());
    }
    let launch = hidden.device().kernel(Function::new(&FAMILY, "weigh").with_dtype(hidden.dtype()));
    let launch = launch.write(hidden).read(&routes.weights).read(&routes.sources);
    let launch = launch.u32(slots).u32(gpu::word(operator, columns)?).u32(vector(columns, &[hidden]));
    let launch = launch.cost(2 * hidden.bytes() as u64, hidden.elements() as u64);
    Ok(launch.launch([slots.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Computes `products`: for each row, the sum over columns of the gate of `pair` times `hidden`.
pub(super) fn gate_dot(
    operator: &'static str,
    (pair, hidden): (&Tensor, &Tensor),
    gate: Gate,
    products: &Tensor,
) -> Result<()> {
    let [slots, columns] = [products.elements(), hidden.shape().columns()];
    let [slots, columns] = [gpu::word(operator, slots)?, gpu::word(operator, columns)?];
    if slots == 0 {
        return Ok(());
    }
    let launch = pair.device().kernel(Function::new(&FAMILY, gate.dot_kernel()).with_dtype(pair.dtype()));
    let launch = launch.read(pair).read(hidden).write(products);
    let launch = gate.add_to(launch.u32(slots).u32(columns));
    let launch = launch.cost(gpu::bytes(&[pair, hidden]), 4 * hidden.elements() as u64);
    Ok(launch.launch([slots.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Computes the gradients of the choices' weights, from the gradients of rows and the experts' biases.
pub(super) fn weight_gradients(
    operator: &'static str,
    of_slots: &Tensor,
    biases: Option<(&Tensor, &Tensor)>,
    routes: &Routes,
    gradients: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let total = word(gradients.elements())?;
    if total == 0 {
        return Ok(());
    }
    let (dtype, columns) = biases.map_or((DType::F32, 0), |(dy, _)| (dy.dtype(), dy.shape().columns()));
    let launch = of_slots.device().kernel(Function::new(&FAMILY, "weight_gradients").with_dtype(dtype));
    let launch = launch.read(of_slots).read(biases.map(|(dy, _)| dy));
    let launch = launch.read(biases.map(|(_, bias)| bias)).read(&routes.slots);
    let launch = launch.read(&routes.choices).write(gradients);
    let launch = launch.u32(total).u32(word(columns)?).u32(word(routes.per_token())?);
    Ok(launch.launch([total.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Adds the layout of an adapter's matrices, whose packed rows are `packed`, to a launch.
fn of_parts<'a>(
    operator: &'static str,
    launch: Launch<'a>,
    packed: &Tensor,
    (parts, rows): (&AdaptedParts, usize),
) -> Result<Launch<'a>> {
    let word = |size| gpu::word(operator, size);
    let mask = parts.adapted.iter().fold(0, |mask, part| mask | 1_u32 << part);
    let launch = launch.u32(mask).u64(packed.elements() as u64).u32(word(rows)?);
    Ok(launch.u32(word(packed.shape().columns())?).u32(word(parts.all)?).u32(word(parts.adapted.len())?))
}

fn element_blocks(operator: &'static str, elements: usize) -> Result<[u32; 3]> {
    Ok([gpu::word(operator, elements.div_ceil(gpu::THREADS as usize))?, 1, 1])
}

/// Copies scale · packed to its blocks in `matrix`, whose other elements are 0 already.
pub(super) fn spread(
    operator: &'static str,
    packed: &Tensor,
    parts: (&AdaptedParts, usize),
    scale: f32,
    matrix: &Tensor,
) -> Result<()> {
    let launch = packed.device().kernel(Function::new(&FAMILY, "spread").with_dtype(packed.dtype()));
    let launch = launch.read(packed).write(matrix);
    let launch = of_parts(operator, launch, packed, parts)?.f32(scale);
    Ok(launch.launch(element_blocks(operator, packed.elements())?, gpu::THREADS)?)
}

/// Computes packed (+)= scale · the blocks of `matrix`.
pub(super) fn collect(
    operator: &'static str,
    matrix: &Tensor,
    parts: (&AdaptedParts, usize),
    scale: f32,
    packed: &GradientTarget,
) -> Result<()> {
    let target = &packed.tensor;
    let launch = matrix.device().kernel(Function::new(&FAMILY, "collect").with_dtype(matrix.dtype()));
    let launch = launch.read(matrix).write(target);
    let launch = of_parts(operator, launch, target, parts)?.f32(scale).u32(u32::from(packed.accumulate));
    Ok(launch.launch(element_blocks(operator, target.elements())?, gpu::THREADS)?)
}

/// Adds `bias` to each row of `logits`.
pub(in crate::ops) fn add_bias(operator: &'static str, logits: &Tensor, bias: &Tensor) -> Result<()> {
    if logits.elements() == 0 {
        return Ok(());
    }
    let launch = logits.device().kernel(Function::new(&FAMILY, "add_bias"));
    let launch = launch.write(logits).read(bias).u64(logits.elements() as u64);
    let launch = launch.u32(gpu::word(operator, bias.elements())?);
    Ok(launch.launch(element_blocks(operator, logits.elements())?, gpu::THREADS)?)
}

/// Computes the input gradient dx = dy · W of a router, with dy in f32.
pub(in crate::ops) fn router_input(
    operator: &'static str,
    dy: &Tensor,
    weight: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [rows, experts, inputs] =
        [word(dy.shape().rows())?, word(dy.shape().columns())?, word(weight.shape().columns())?];
    if dx.elements() == 0 {
        return Ok(());
    }
    let kernel = linear(["router_input", "router_input_wide"], weight.dtype(), dx.dtype());
    let launch = dy.device().kernel(kernel).read(dy).read(weight).write(dx);
    let launch = launch.u32(rows).u32(experts).u32(inputs).cost(gpu::bytes(&[dy, weight, dx]), 0);
    Ok(launch.launch([inputs.div_ceil(TILE), rows.div_ceil(TILE), 1], gpu::THREADS)?)
}

/// Rows that one block of threads adds in the gradient of a router's weight.
const ROUTER_ROWS: usize = 1024;
/// Maximum number of groups of rows, whose sums are added in order.
const ROUTER_PARTS: usize = 16;

/// Returns the rows of each group of `rows` rows.
fn router_rows(rows: usize) -> usize {
    rows.div_ceil(ROUTER_PARTS).max(ROUTER_ROWS).next_multiple_of(TILE as usize)
}

/// Returns the bytes of the sums of groups of `rows` rows, for a weight of `elements`.
pub(in crate::ops) fn router_workspace_bytes(rows: usize, elements: usize) -> usize {
    rows.div_ceil(router_rows(rows)) * elements * size_of::<f32>()
}

/// Computes the gradient weight (+)= dyᵀ · x of a router, with dy in f32.
pub(in crate::ops) fn router_weight(
    operator: &'static str,
    (dy, x): (&Tensor, &Tensor),
    parts: &Tensor,
    weight: &GradientTarget,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let device = dy.device();
    let all_rows = dy.shape().rows();
    let each = router_rows(all_rows);
    let [rows, experts, inputs] = [word(all_rows)?, word(dy.shape().columns())?, word(x.shape().columns())?];
    let count = word(all_rows.div_ceil(each))?;
    let launch = device.kernel(Function::new(&FAMILY_LINEAR, "router_weight").with_dtype(x.dtype()));
    let launch = launch.read(dy).read(x).write(parts).u32(rows).u32(word(each)?).u32(experts).u32(inputs);
    let grid = [inputs.div_ceil(TILE), experts.div_ceil(TILE), count];
    launch.cost(gpu::bytes(&[dy, x]), 0).launch(grid, gpu::THREADS)?;
    let target = &weight.tensor;
    let elements = word(weight.tensor.elements())?;
    let launch = device.kernel(linear(["router_sum", "router_sum_wide"], x.dtype(), target.dtype()));
    let launch = launch.read(parts).write(target).u32(count).u32(elements);
    let launch = launch.u32(u32::from(weight.accumulate)).cost(parts.bytes() as u64, 0);
    Ok(launch.launch([elements.div_ceil(gpu::THREADS), 1, 1], gpu::THREADS)?)
}

/// Computes the gradient bias (+)= Σ of dy over rows of a router, with dy in f32.
pub(in crate::ops) fn router_bias(operator: &'static str, dy: &Tensor, bias: &GradientTarget) -> Result<()> {
    let [rows, experts] = [dy.shape().rows(), dy.shape().columns()];
    let [rows, experts] = [gpu::word(operator, rows)?, gpu::word(operator, experts)?];
    let names = ["router_bias"; 2];
    let dtype = bias.tensor.dtype();
    let launch = dy.device().kernel(linear(names, dtype, dtype)).read(dy);
    let launch = launch.write(&bias.tensor).u32(rows).u32(experts);
    let launch = launch.u32(u32::from(bias.accumulate)).cost(dy.bytes() as u64, dy.elements() as u64);
    Ok(launch.launch([experts.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}
