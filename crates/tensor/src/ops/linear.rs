//! y = activation(x · Wᵀ + b), with the input's and the weight's backward passes apart.

use device::parallel::simd;
use device::{Category, DType, MatrixRef, Request, gemm, gemm_then};

use super::activation::{self, Activation, relu};
use super::{GradientTarget, check, columns};
use crate::{Result, Tensor};

/// What [`forward`] gives.
#[derive(Clone, Debug)]
pub struct Output {
    /// `[.., out]`.
    pub output: Tensor,
    /// x · Wᵀ + b of the same shape, which GELU's backward pass needs; `None` for other activations.
    pub pre_activation: Option<Tensor>,
}

/// `x [.., in]`, `weight [out, in]`, `bias [out]` to `[.., out]`, all f32. ReLU is applied in the output's
/// own memory; GELU allocates the pre-activation, then the output.
/// Errors: shapes or types that do not agree, out of memory.
pub fn forward(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Output> {
    const OPERATOR: &str = "linear.forward";
    check::f32s(OPERATOR, &[("x", x), ("weight", weight)])?;
    let (outputs, inputs) = matrix(OPERATOR, weight)?;
    check::shape(OPERATOR, "x", x, check::with_columns(x.shape(), inputs))?;
    if let Some(bias) = bias {
        check::f32s(OPERATOR, &[("bias", bias)])?;
        check::shape(OPERATOR, "bias", bias, [outputs])?;
    }
    let shape = check::with_columns(x.shape(), outputs);
    let allocate =
        || Tensor::empty(x.device(), shape, DType::F32, Request::new(Category::Activation, OPERATOR));
    let product = allocate()?;
    let gelu = if activation == Activation::Gelu { Some(allocate()?) } else { None };
    if !x.device().is_meta() {
        affine(x, weight, bias, activation == Activation::Relu, &product)?;
        if let Some(output) = &gelu {
            activation::apply(&product.read()?, &mut output.write::<f32>()?, activation);
        }
    }
    Ok(match gelu {
        Some(output) => Output { output, pre_activation: Some(product) },
        None => Output { output: product, pre_activation: None },
    })
}

/// The gradient of the pre-activation from that of the output; `saved` is the output for ReLU, the
/// pre-activation for GELU. In place when nothing else looks at `dy`'s storage, else in a new tensor.
/// Errors: as [`activation::backward`].
pub fn backward_activation(dy: Tensor, saved: &Tensor, activation: Activation) -> Result<Tensor> {
    activation::backward(dy, saved, activation)
}

/// dx `[.., in]` = dy `[.., out]` · weight `[out, in]`. Errors: shapes or types that do not agree, out of memory.
pub fn backward_input(dy: &Tensor, weight: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "linear.backward_input";
    check::f32s(OPERATOR, &[("dy", dy), ("weight", weight)])?;
    let (outputs, inputs) = matrix(OPERATOR, weight)?;
    check::shape(OPERATOR, "dy", dy, check::with_columns(dy.shape(), outputs))?;
    let shape = check::with_columns(dy.shape(), inputs);
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx = Tensor::empty(dy.device(), shape, DType::F32, request)?;
    if !dy.device().is_meta() {
        let (dy_values, weight) = (dy.read()?, weight.read()?);
        let dy_matrix = MatrixRef::new(&dy_values, dy.shape().rows(), outputs, outputs);
        let weight = MatrixRef::new(&weight, outputs, inputs, inputs);
        gemm(dy_matrix, weight, &mut dx.write::<f32>()?, inputs, 1.0, false);
    }
    Ok(dx)
}

/// weight `[out, in]` (+)= dyᵀ · x and bias `[out]` (+)= Σ over rows of dy, for `dy [.., out]` and `x [.., in]`.
/// Errors: shapes or types that do not agree.
pub fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "linear.backward_weight";
    check::f32s(OPERATOR, &[("dy", dy), ("x", x), ("weight", &weight.tensor)])?;
    let (rows, outputs, inputs) = (dy.shape().rows(), dy.shape().columns(), x.shape().columns());
    check::shape(OPERATOR, "x", x, check::with_columns(dy.shape(), inputs))?;
    check::shape(OPERATOR, "weight", &weight.tensor, [outputs, inputs])?;
    if let Some(bias) = bias {
        check::f32s(OPERATOR, &[("bias", &bias.tensor)])?;
        check::shape(OPERATOR, "bias", &bias.tensor, [outputs])?;
    }
    if dy.device().is_meta() {
        return Ok(());
    }
    let (dy, x) = (dy.read()?, x.read()?);
    let (dy, x): (&[f32], &[f32]) = (&dy, &x);
    let dy_matrix = MatrixRef::new(dy, rows, outputs, outputs).transposed();
    let x_matrix = MatrixRef::new(x, rows, inputs, inputs);
    gemm(dy_matrix, x_matrix, &mut weight.tensor.write::<f32>()?, inputs, 1.0, weight.accumulate);
    if let Some(bias) = bias {
        columns::sum_rows(rows, &mut bias.tensor.write::<f32>()?, bias.accumulate, |row, columns, sum| {
            let dy = &dy[row * outputs..][columns];
            sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
        });
    }
    Ok(())
}

/// The two sizes of a weight.
fn matrix(operator: &'static str, weight: &Tensor) -> Result<(usize, usize)> {
    match *weight.shape().dims() {
        [outputs, inputs] => Ok((outputs, inputs)),
        _ => Err(check::wrong(operator, "weight", weight, "[out, in]".to_owned())),
    }
}

/// out = x · Wᵀ + b, clipped from below by 0 where `clip`, in one pass over the output.
fn affine(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, clip: bool, out: &Tensor) -> Result<()> {
    let (rows, inputs, outputs) = (out.shape().rows(), x.shape().columns(), out.shape().columns());
    let (x, weight) = (x.read()?, weight.read()?);
    let bias = bias.map(Tensor::read::<f32>).transpose()?;
    let x_matrix = MatrixRef::new(&x, rows, inputs, inputs);
    let weight = MatrixRef::new(&weight, outputs, inputs, inputs).transposed();
    let bias: &[f32] = bias.as_deref().unwrap_or(&[]);
    gemm_then(x_matrix, weight, &mut out.write::<f32>()?, outputs, 1.0, false, |finished| {
        simd(|| {
            for row in finished.chunks_mut(outputs) {
                match (bias.is_empty(), clip) {
                    (false, true) => row.iter_mut().zip(bias).for_each(|(y, b)| *y = relu(*y + b)),
                    (false, false) => row.iter_mut().zip(bias).for_each(|(y, b)| *y += b),
                    (true, true) => row.iter_mut().for_each(|y| *y = relu(*y)),
                    (true, false) => {}
                }
            }
        });
    });
    Ok(())
}
