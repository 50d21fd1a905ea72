//! Launches of `kernels/experts.cu` and, but for sums over rows, of `kernels/experts_linear.cu`.

use device::cuda::Launch;
use device::{DType, Family, Function, Work};

use super::function::plain_kernels;
use super::hopper::Matmul;
use super::parts::AdaptedParts;
use crate::ops::gate::Gate;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::ops::routing::Routes;
use crate::ops::{Activation, GradientTarget};
use crate::{Result, Tensor};

/// Threads of a warp. A warp moves one row.
const WARP: u32 = 32;
/// Rows per block: one per warp.
const ROWS: u32 = gpu::THREADS / WARP;
/// Rows of a tile of a matmul, and columns unless there are fewer.
pub(super) const TILE: u32 = 64;
/// Columns of a tile of a matmul that has no more.
const NARROW: u32 = 16;
/// Rows of a part of a group, of sums over rows.
pub(super) const PART_ROWS: u32 = 512;

pub(crate) static FAMILY: Family =
    family!("experts", headers: ["activation.cuh", "gate.cuh"], constants: &[gpu::THREADS_CONSTANT]);

pub(crate) static FAMILY_LINEAR: Family = family!(
    "experts_linear",
    constants: &[gpu::THREADS_CONSTANT, ("LINES", TILE), ("NARROW", NARROW), ("PART_ROWS", PART_ROWS)],
);

/// Returns the matmul kernel for operands of `dtype` and results of `out`.
pub(super) fn linear(names: [&'static str; 2], dtype: DType, out: DType) -> Function {
    let name = names[usize::from(out != dtype)];
    Function::new(&FAMILY_LINEAR, name).with_dtype(dtype)
}

/// Returns the tiles of `columns` columns of a matmul.
pub(super) fn column_tiles(columns: u32) -> u32 {
    columns.div_ceil(if columns <= NARROW { NARROW } else { TILE })
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
    (x_si, weight_eoi, bias_eo): (&Tensor, &Tensor, Option<&Tensor>),
    routes: &Routes,
    y_so: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [experts, outputs] = [word(routes.experts())?, word(y_so.shape().columns())?];
    if y_so.elements() == 0 {
        return Ok(());
    }
    let sizes = [y_so.shape().columns(), x_si.shape().columns()];
    if let Some(matmul) = Matmul::new(operator, [x_si, weight_eoi, y_so], routes, sizes)? {
        return matmul.forward(bias_eo);
    }
    let kernel = linear(["forward", "forward_wide"], x_si.dtype(), y_so.dtype());
    let launch = x_si
        .device()
        .kernel(kernel)
        .read(x_si)
        .read(weight_eoi)
        .read(bias_eo)
        .read(&routes.offsets)
        .write(y_so);
    let launch = launch.u32(experts).u32(outputs).u32(word(x_si.shape().columns())?);
    let grid = [column_tiles(outputs), row_tiles(operator, routes)?, 1];
    let flops = Work::flops_of_products([routes.slots(), sizes[0], sizes[1]]);
    Ok(launch.cost(gpu::bytes(&[x_si, weight_eoi, y_so]), flops).launch(grid, gpu::THREADS)?)
}

/// Computes dx = dy · W of each group.
pub(super) fn backward_input(
    operator: &'static str,
    (dy_so, weight_eoi): (&Tensor, &Tensor),
    routes: &Routes,
    dx_si: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [experts, inputs] = [word(routes.experts())?, word(dx_si.shape().columns())?];
    if dx_si.elements() == 0 {
        return Ok(());
    }
    let sizes = [dy_so.shape().columns(), dx_si.shape().columns()];
    if let Some(matmul) = Matmul::new(operator, [dy_so, weight_eoi, dx_si], routes, sizes)? {
        return matmul.backward_input();
    }
    let kernel = linear(["backward_input", "backward_input_wide"], dy_so.dtype(), dx_si.dtype());
    let launch =
        dy_so.device().kernel(kernel).read(dy_so).read(weight_eoi).read(&routes.offsets).write(dx_si);
    let launch = launch.u32(experts).u32(word(dy_so.shape().columns())?).u32(inputs);
    let grid = [column_tiles(inputs), row_tiles(operator, routes)?, 1];
    let flops = Work::flops_of_products([routes.slots(), sizes[0], sizes[1]]);
    Ok(launch.cost(gpu::bytes(&[dy_so, weight_eoi, dx_si]), flops).launch(grid, gpu::THREADS)?)
}

/// Copies the rows of `x_td` to `gathered_sd`, in the order of experts.
pub(super) fn gather(
    operator: &'static str,
    x_td: &Tensor,
    routes: &Routes,
    gathered_sd: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let slots = word(routes.slots())?;
    let columns = x_td.shape().columns();
    if gathered_sd.elements() == 0 {
        return Ok(());
    }
    let launch = x_td.device().kernel(Function::new(&FAMILY, "gather").with_dtype(x_td.dtype()));
    let launch = launch.read(x_td).read(&routes.sources).write(gathered_sd);
    let launch = launch.u32(slots).u32(word(columns)?).u32(word(routes.per_token())?);
    let launch = launch.u32(vector(columns, &[x_td, gathered_sd])).cost(2 * gathered_sd.bytes() as u64, 0);
    Ok(launch.launch([slots.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Computes out = the sum over each token's choices of `y_sd`, plus weighted biases.
pub(super) fn sum(
    operator: &'static str,
    (y_sd, bias_ed): (&Tensor, Option<&Tensor>),
    routes: &Routes,
    out_td: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let rows = word(routes.rows())?;
    let columns = y_sd.shape().columns();
    if out_td.elements() == 0 {
        return Ok(());
    }
    // With a bias of a half type, f32 rows have kernels of their own.
    let (name, dtype) = match bias_ed.map(Tensor::dtype).filter(|dtype| *dtype != y_sd.dtype()) {
        Some(half) => ("combine_wide", half),
        None => ("combine", y_sd.dtype()),
    };
    let launch = y_sd.device().kernel(Function::new(&FAMILY, name).with_dtype(dtype));
    let launch = launch.read(y_sd).read(bias_ed).read(&routes.slots);
    let launch = launch.read(&routes.choices).read(&routes.weights).write(out_td);
    let launch = launch.u32(rows).u32(word(columns)?).u32(word(routes.per_token())?);
    let aligned = bias_ed.is_none_or(|bias| gpu::aligned(&[bias]));
    let launch = launch.u32(if aligned { vector(columns, &[y_sd, out_td]) } else { 0 });
    let launch = launch.cost(gpu::bytes(&[y_sd, out_td]), y_sd.elements() as u64);
    Ok(launch.launch([rows.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Multiplies each row of experts by the weight of its choice.
pub(super) fn weigh(operator: &'static str, hidden_sf: &Tensor, routes: &Routes) -> Result<()> {
    let slots = gpu::word(operator, routes.slots())?;
    let columns = hidden_sf.shape().columns();
    if hidden_sf.elements() == 0 {
        return Ok(());
    }
    let launch = hidden_sf.device().kernel(Function::new(&FAMILY, "weigh").with_dtype(hidden_sf.dtype()));
    let launch = launch.write(hidden_sf).read(&routes.weights).read(&routes.sources);
    let launch = launch.u32(slots).u32(gpu::word(operator, columns)?).u32(vector(columns, &[hidden_sf]));
    let launch = launch.cost(2 * hidden_sf.bytes() as u64, hidden_sf.elements() as u64);
    Ok(launch.launch([slots.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Computes `products_s`: for each row, the sum over columns of the gate of `pair_s2f` times `hidden_sf`.
pub(super) fn gate_dot(
    operator: &'static str,
    (pair_s2f, hidden_sf): (&Tensor, &Tensor),
    gate: Gate,
    products_s: &Tensor,
) -> Result<()> {
    let [slots, columns] = [products_s.elements(), hidden_sf.shape().columns()];
    let [slots, columns] = [gpu::word(operator, slots)?, gpu::word(operator, columns)?];
    if slots == 0 {
        return Ok(());
    }
    let launch =
        pair_s2f.device().kernel(Function::new(&FAMILY, gate.dot_kernel()).with_dtype(pair_s2f.dtype()));
    let launch = launch.read(pair_s2f).read(hidden_sf).write(products_s);
    let launch = gate.add_to(launch.u32(slots).u32(columns));
    let launch = launch.cost(gpu::bytes(&[pair_s2f, hidden_sf]), 4 * hidden_sf.elements() as u64);
    Ok(launch.launch([slots.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Computes activation(x) times the weight of each row's choice.
pub(super) fn activate(
    operator: &'static str,
    x_sf: &Tensor,
    routes: &Routes,
    activation: Activation,
    hidden_sf: &Tensor,
) -> Result<()> {
    let [slots, columns] = [routes.slots(), x_sf.shape().columns()];
    if x_sf.elements() == 0 {
        return Ok(());
    }
    let [name, _] = plain_kernels(activation);
    let launch = x_sf.device().kernel(Function::new(&FAMILY, name).with_dtype(x_sf.dtype()));
    let launch = launch.read(x_sf).write(hidden_sf).read(&routes.weights).read(&routes.sources);
    let launch = launch.u32(gpu::word(operator, slots)?).u32(gpu::word(operator, columns)?);
    let launch = launch.u32(vector(columns, &[x_sf, hidden_sf]));
    let launch = launch.cost(gpu::bytes(&[x_sf, hidden_sf]), 4 * x_sf.elements() as u64);
    Ok(launch.launch([gpu::word(operator, slots)?.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Computes the gradients of [`activate`]: of x in its memory, and of the weights; the gradient of the result
/// is replaced by the result.
pub(super) fn activate_gradient(
    operator: &'static str,
    [x_sf, hidden_sf]: [&Tensor; 2],
    routes: &Routes,
    activation: Activation,
    gradients_s: &Tensor,
) -> Result<()> {
    let slots = gpu::word(operator, routes.slots())?;
    if x_sf.elements() == 0 {
        return Ok(());
    }
    let [_, name] = plain_kernels(activation);
    let launch = x_sf.device().kernel(Function::new(&FAMILY, name).with_dtype(x_sf.dtype()));
    let launch = launch.write(x_sf).write(hidden_sf).write(gradients_s);
    let launch = launch.read(&routes.weights).read(&routes.sources).u32(slots);
    let launch = launch.u32(gpu::word(operator, x_sf.shape().columns())?);
    let launch = launch.cost(2 * gpu::bytes(&[x_sf, hidden_sf]), 8 * x_sf.elements() as u64);
    Ok(launch.launch([slots.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}

/// Computes the gradients of the choices' weights, from the gradients of rows and the experts' biases.
pub(super) fn weight_gradients(
    operator: &'static str,
    of_slots_s: &Tensor,
    biases: Option<(&Tensor, &Tensor)>,
    routes: &Routes,
    gradients_tp: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let total = word(gradients_tp.elements())?;
    if total == 0 {
        return Ok(());
    }
    let (dtype, columns) = biases.map_or((DType::F32, 0), |(dy, _)| (dy.dtype(), dy.shape().columns()));
    let launch = of_slots_s.device().kernel(Function::new(&FAMILY, "weight_gradients").with_dtype(dtype));
    let launch = launch.read(of_slots_s).read(biases.map(|(dy, _)| dy));
    let launch = launch.read(biases.map(|(_, bias)| bias)).read(&routes.slots);
    let launch = launch.read(&routes.choices).write(gradients_tp);
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

/// Adds `bias_e` to each row of `logits_te`.
pub(in crate::ops) fn add_bias(operator: &'static str, logits_te: &Tensor, bias_e: &Tensor) -> Result<()> {
    if logits_te.elements() == 0 {
        return Ok(());
    }
    let launch = logits_te.device().kernel(Function::new(&FAMILY, "add_bias"));
    let launch = launch.write(logits_te).read(bias_e).u64(logits_te.elements() as u64);
    let launch = launch.u32(gpu::word(operator, bias_e.elements())?);
    Ok(launch.launch(element_blocks(operator, logits_te.elements())?, gpu::THREADS)?)
}

/// Computes the input gradient dx = dy · W of a router, with dy in f32.
pub(in crate::ops) fn router_input(
    operator: &'static str,
    dy_te: &Tensor,
    weight_ed: &Tensor,
    dx_td: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [rows, experts, inputs] =
        [word(dy_te.shape().rows())?, word(dy_te.shape().columns())?, word(weight_ed.shape().columns())?];
    if dx_td.elements() == 0 {
        return Ok(());
    }
    let kernel = linear(["router_input", "router_input_wide"], weight_ed.dtype(), dx_td.dtype());
    let launch = dy_te.device().kernel(kernel).read(dy_te).read(weight_ed).write(dx_td);
    let flops = Work::flops_of_products([dx_td.elements(), experts as usize]);
    let bytes = gpu::bytes(&[dy_te, weight_ed, dx_td]);
    let launch = launch.u32(rows).u32(experts).u32(inputs).cost(bytes, flops);
    Ok(launch.launch([inputs.div_ceil(TILE), rows.div_ceil(TILE), 1], gpu::THREADS)?)
}

/// Computes the gradient bias (+)= Σ of dy over rows of a router, with dy in f32.
pub(in crate::ops) fn router_bias(
    operator: &'static str,
    dy_te: &Tensor,
    bias: &GradientTarget,
) -> Result<()> {
    let [rows, experts] = [dy_te.shape().rows(), dy_te.shape().columns()];
    let [rows, experts] = [gpu::word(operator, rows)?, gpu::word(operator, experts)?];
    let names = ["router_bias"; 2];
    let dtype = bias.tensor.dtype();
    let launch = dy_te.device().kernel(linear(names, dtype, dtype)).read(dy_te);
    let launch = launch.write(&bias.tensor).u32(rows).u32(experts);
    let launch = launch.u32(u32::from(bias.accumulate)).cost(dy_te.bytes() as u64, dy_te.elements() as u64);
    Ok(launch.launch([experts.div_ceil(ROWS), 1, 1], gpu::THREADS)?)
}
