//! Linear layers whose matmuls have operands in FP8: activations and weights in E4M3, gradients in E4M3 or
//! E5M2.
//!
//! A GPU multiplies FP8 operands only if the summed dimension is contiguous in both. So each operand is cast
//! once into the layouts that its matmuls read ([`Quantised`]):
//!
//! | matmul | left operand | right operand |
//! | --- | --- | --- |
//! | y = x · Wᵀ | x as stored | W as stored |
//! | dx = dy · W | dy as stored | W transposed |
//! | dW = dyᵀ · x | dy transposed | x transposed |
//!
//! Scaling is current: factors follow from the largest magnitudes of the elements that are cast, not of
//! earlier steps. A maximum does not depend on the order of its search, so neither do the bits. An element
//! that is not finite makes the whole result not finite. The CPU emulates the formats exactly and adds in
//! f32.

mod call;
mod cpu;
pub(crate) mod cuda;
mod input;
mod maxima;
mod quantise;
mod quantised;

use device::{Backend, Category, DType, Request, Work};

use super::{GradientTarget, check};
use crate::{Result, Shape, Tensor};
pub(super) use cpu::{inverse as factor_of, multiply_columns};
pub use input::Input;
pub use maxima::{backward_activation, backward_gate};
pub(super) use quantise::{cast, measure};
pub use quantise::{finish_sums, quantise, quantise_gradient, quantise_into, quantise_with};
pub use quantised::{Cast, MULTIPLE, Quantised, Recipe, Scaled};

/// Computes `x · weightᵀ + bias` in `dtype` as `[.., out]`, with the leading dimensions of `shape`. `x [rows,
/// in]` and `weight [out, in]` are as stored.
pub fn forward(
    x: &Scaled,
    weight: &Scaled,
    bias: Option<&Tensor>,
    shape: Shape,
    dtype: DType,
) -> Result<Tensor> {
    const OPERATOR: &str = "fp8_linear.forward";
    let outputs = weight.values.shape().rows();
    if let Some(bias) = bias {
        check::dtype(OPERATOR, "bias", bias, dtype)?;
        check::shape(OPERATOR, "bias", bias, [outputs])?;
    }
    let out = allocate(OPERATOR, x, weight, shape, dtype, Category::Activation)?;
    multiply(OPERATOR, x, weight, bias, &out, false, true)?;
    Ok(out)
}

/// Allocates the output of [`forward`] without computing it, for recomputation, where nothing reads it. `x`
/// is any tensor of the layer's input shape.
pub fn forward_again(x: &Tensor, outputs: usize, dtype: DType) -> Result<Tensor> {
    let request = Request::new(Category::Activation, "fp8_linear.forward");
    Tensor::empty(x.device(), check::with_columns(x.shape(), outputs), dtype, request)
}

/// Computes `dy · weight` in `dtype` as `[.., in]`, with the leading dimensions of `shape`. `dy [rows, out]`
/// is as stored, `weight [in, out]` transposed.
pub fn backward_input(dy: &Scaled, weight: &Scaled, shape: Shape, dtype: DType) -> Result<Tensor> {
    const OPERATOR: &str = "fp8_linear.backward_input";
    let out = allocate(OPERATOR, dy, weight, shape, dtype, Category::ActivationGradient)?;
    multiply(OPERATOR, dy, weight, None, &out, false, true)?;
    Ok(out)
}

/// Computes target `[out, in]` (+)= dyᵀ · x for `dy` transposed `[out, rows]` and `x` transposed `[in,
/// rows]`. Tensor cores' accumulators are too narrow for sums over all rows of a micro-batch, so partial sums
/// are added in f32 at intervals.
pub fn backward_weight(dy: &Scaled, x: &Scaled, target: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "fp8_linear.backward_weight";
    check::shape(OPERATOR, "weight", &target.tensor, [dy.values.shape().rows(), x.values.shape().rows()])?;
    multiply(OPERATOR, dy, x, None, &target.tensor, target.accumulate, false)
}

/// Allocates the result of `a [rows, k]` · `b [columns, k]`ᵀ with the leading dimensions of `shape`.
fn allocate(
    operator: &'static str,
    a: &Scaled,
    b: &Scaled,
    shape: Shape,
    dtype: DType,
    category: Category,
) -> Result<Tensor> {
    let shape = check::with_columns(shape, b.values.shape().rows());
    if shape.rows() != a.values.shape().rows() {
        return Err(check::wrong(operator, "a", &a.values, format!("{} rows", shape.rows())));
    }
    Tensor::empty(a.values.device(), shape, dtype, Request::new(category, operator))
}

/// Computes out `[m, n]` (+)= a `[m, k]` · b `[n, k]`ᵀ + bias `[n]`.
fn multiply(
    operator: &'static str,
    a: &Scaled,
    b: &Scaled,
    bias: Option<&Tensor>,
    out: &Tensor,
    accumulate: bool,
    fast: bool,
) -> Result<()> {
    let m = a.values.shape().rows();
    let n = b.values.shape().rows();
    let k = a.values.shape().columns();
    check::shape(operator, "b", &b.values, [n, k])?;
    check::elements(operator, "out", out, m * n)?;
    out.device().count_flops(Work::flops_of_products([m, n, k]));
    if m * n == 0 {
        return Ok(());
    }
    match out.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::multiply(a, b, bias, out, accumulate),
        Backend::Cuda => cuda::multiply(a, b, bias, out, accumulate, fast),
    }
}
