//! Linear layers on a GPU: one matmul each, with bias and GELU in its epilogue where the type supports it.

use device::{DType, Epilogue, Family, Function, Matmul, Operand, Region};

use crate::ops::activation::{self, Activation};
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu, padding};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!("linear", headers: ["columns.cuh"], constants: columns::CONSTANTS);

/// Returns an operand with the rows of `tensor`, which may be padded.
fn operand(tensor: &Tensor) -> Operand<'_> {
    Operand::new(tensor.region(), tensor.dtype()).with_stride(tensor.shape().columns())
}

/// Returns the first class and the number of classes of each matmul over `classes` classes, whose scores have
/// rows of `columns` elements. Padded scores ([`super::forward_padded`]) take two: for a size that is no
/// multiple of a vector, the library has slow algorithms only.
fn parts(classes: usize, columns: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    let whole = if columns == classes { classes } else { padding::whole(classes) };
    [(0, whole), (whole, classes - whole)].into_iter().filter(|(_, count)| *count > 0)
}

/// Returns an operand with `count` rows of `tensor` from `first` on.
fn rows(tensor: &Tensor, first: usize, count: usize) -> Operand<'_> {
    let row = tensor.shape().columns() * tensor.dtype().bytes();
    let Region { buffer, offset, .. } = tensor.region();
    Operand::new(Region { buffer, offset: offset + first * row, bytes: count * row }, tensor.dtype())
}

/// Computes out = x · Wᵀ with an epilogue.
pub(super) fn forward(
    x_ti: &Tensor,
    weight_oi: &Tensor,
    out_to: &Tensor,
    accumulate: bool,
    epilogue: Epilogue<'_>,
) -> Result<()> {
    let m = out_to.shape().rows();
    let n = weight_oi.shape().rows();
    let k = x_ti.shape().columns();
    if m * n == 0 {
        return Ok(());
    }
    let a = operand(x_ti);
    for (first, n) in parts(n, out_to.shape().columns()) {
        let b = rows(weight_oi, first, n).transposed();
        let out = operand(out_to).skip_columns(first);
        x_ti.device().matmul(&Matmul { m, n, k, a, b, out, accumulate, epilogue, fast: false })?;
    }
    Ok(())
}

fn bias_or_none(bias: Option<&Tensor>) -> Epilogue<'_> {
    bias.map_or(Epilogue::None, |bias| Epilogue::Bias(bias.region()))
}

/// Returns whether cuBLASLt has epilogues for GELU and a bias's gradient in this type: half types.
pub(crate) fn has_epilogues(dtype: DType) -> bool {
    dtype.is_float() && dtype != DType::F32
}

/// Returns whether a matmul with this output can apply GELU's tanh form or its derivative in its epilogue. It
/// requires a half type, and rows of whole 16-byte vectors.
pub(crate) fn has_gelu_epilogue(output: &Tensor) -> bool {
    has_epilogues(output.dtype()) && output.shape().columns().is_multiple_of(gpu::lanes(output.dtype()))
}

/// Computes out = x · Wᵀ + b. With `clip`, applies ReLU.
pub(crate) fn affine(
    x_ti: &Tensor,
    weight_oi: &Tensor,
    bias_o: Option<&Tensor>,
    clip: bool,
    out_to: &Tensor,
) -> Result<()> {
    forward(x_ti, weight_oi, out_to, false, bias_or_none(bias_o))?;
    if clip {
        activation::apply(out_to, out_to, Activation::Relu)?;
    }
    Ok(())
}

/// Computes pre = x · Wᵀ + b and out = activation(pre).
pub(super) fn affine_activated(
    x_ti: &Tensor,
    weight_oi: &Tensor,
    bias_o: Option<&Tensor>,
    activation: Activation,
    pre_to: &Tensor,
    out_to: &Tensor,
) -> Result<()> {
    match (bias_o, activation) {
        (Some(bias_o), Activation::Gelu) if has_gelu_epilogue(pre_to) => forward(
            x_ti,
            weight_oi,
            out_to,
            false,
            Epilogue::GeluBias { bias: bias_o.region(), pre: pre_to.region() },
        ),
        _ => {
            forward(x_ti, weight_oi, pre_to, false, bias_or_none(bias_o))?;
            activation::apply(pre_to, out_to, activation)
        }
    }
}

/// Computes out += x · Wᵀ + b.
pub(super) fn add(x_ti: &Tensor, weight_oi: &Tensor, bias_o: Option<&Tensor>, out_to: &Tensor) -> Result<()> {
    forward(x_ti, weight_oi, out_to, true, bias_or_none(bias_o))
}

/// Computes dx (+)= dy · weight with an epilogue.
pub(super) fn backward_input(
    dy_to: &Tensor,
    weight_oi: &Tensor,
    dx_ti: &Tensor,
    accumulate: bool,
    epilogue: Epilogue<'_>,
) -> Result<()> {
    let m = dx_ti.shape().rows();
    let n = dx_ti.shape().columns();
    let k = weight_oi.shape().rows();
    if m * n == 0 {
        return Ok(());
    }
    let out = operand(dx_ti);
    // The few terms of the rest come first, so that the sum of all others is rounded once.
    let columns = if matches!(epilogue, Epilogue::None) { dy_to.shape().columns() } else { k };
    for (index, (first, k)) in parts(k, columns).rev().enumerate() {
        let a = operand(dy_to).skip_columns(first);
        let b = rows(weight_oi, first, k);
        let accumulate = accumulate || index > 0;
        dy_to.device().matmul(&Matmul { m, n, k, a, b, out, accumulate, epilogue, fast: false })?;
    }
    Ok(())
}

/// Computes weight (+)= dyᵀ · x and, in the same call, `bias` = Σ over rows of dy.
pub(crate) fn backward_weight(
    dy_to: &Tensor,
    x_ti: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    let m = weight.tensor.shape().rows();
    let n = x_ti.shape().columns();
    let k = dy_to.shape().rows();
    let b = operand(x_ti);
    let epilogue = bias.map_or(Epilogue::None, |bias| Epilogue::BiasGradient(bias.tensor.region()));
    for (first, m) in parts(m, dy_to.shape().columns()) {
        let a = operand(dy_to).skip_columns(first).transposed();
        let out = rows(&weight.tensor, first, m);
        let call = Matmul { m, n, k, a, b, out, accumulate: weight.accumulate, epilogue, fast: false };
        dy_to.device().matmul(&call)?;
    }
    Ok(())
}

/// Computes bias (+)= Σ over rows of dy, with partial sums in `workspace`.
pub(super) fn sum_bias(
    operator: &'static str,
    dy: &Tensor,
    workspace: &Tensor,
    bias: &GradientTarget,
) -> Result<()> {
    let cut = Cut::divide(operator, dy, gpu::aligned(&[dy]))?;
    let kernel = Function::new(&FAMILY, "bias_sums").with_dtype(dy.dtype());
    let launch = dy.device().kernel(kernel).read(dy).write(workspace);
    let launch = launch.u32(cut.rows).u32(cut.width).u32(cut.rows_per_run).u32(u32::from(cut.vector));
    let cost = dy.bytes() as u64;
    launch.cost(cost, dy.elements() as u64).launch(cut.grid(), gpu::THREADS)?;
    columns::finish(&FAMILY, workspace, 0, &cut, cut.width, bias)
}
