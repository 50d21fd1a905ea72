//! Linear layers on the host.

use device::parallel::simd;
use device::{MatrixRef, gemm, gemm_then};

use crate::ops::activation::{Elementary, Relu};
use crate::ops::{GradientTarget, columns};
use crate::{Result, Tensor};

/// Computes out (+)= x · Wᵀ + b in one pass over the output. With `clip`, applies ReLU.
pub(super) fn affine(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    clip: bool,
    out: &Tensor,
    accumulate: bool,
) -> Result<()> {
    let rows = out.shape().rows();
    let inputs = x.shape().columns();
    let outputs = out.shape().columns();
    let x = x.values()?;
    let weight = weight.values()?;
    let bias = bias.map(Tensor::values).transpose()?;
    let x_matrix = MatrixRef::new(&x, rows, inputs, inputs);
    let weight = MatrixRef::new(&weight, outputs, inputs, inputs).transposed();
    let bias: &[f32] = bias.as_deref().unwrap_or(&[]);
    gemm_then(x_matrix, weight, &mut out.values_mut()?, outputs, 1.0, accumulate, |finished| {
        simd(|| {
            for row in finished.chunks_mut(outputs) {
                match (bias.is_empty(), clip) {
                    (false, true) => row.iter_mut().zip(bias).for_each(|(y, b)| *y = Relu::value(*y + b)),
                    (false, false) => row.iter_mut().zip(bias).for_each(|(y, b)| *y += b),
                    (true, true) => row.iter_mut().for_each(|y| *y = Relu::value(*y)),
                    (true, false) => {}
                }
            }
        });
    });
    Ok(())
}

/// Computes dx (+)= dy · weight.
pub(super) fn backward_input(dy: &Tensor, weight: &Tensor, dx: &Tensor, accumulate: bool) -> Result<()> {
    let rows = dy.shape().rows();
    let outputs = dy.shape().columns();
    let inputs = dx.shape().columns();
    let dy = dy.values()?;
    let weight = weight.values()?;
    let dy = MatrixRef::new(&dy, rows, outputs, outputs);
    let weight = MatrixRef::new(&weight, outputs, inputs, inputs);
    gemm(dy, weight, &mut dx.values_mut()?, inputs, 1.0, accumulate);
    Ok(())
}

/// Computes weight (+)= dyᵀ · x, and bias (+)= Σ over rows of dy.
pub(super) fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    let rows = dy.shape().rows();
    let outputs = dy.shape().columns();
    let inputs = x.shape().columns();
    let gradient = dy.values()?;
    let x = x.values()?;
    let dy_matrix = MatrixRef::new(&gradient, rows, outputs, outputs).transposed();
    let x_matrix = MatrixRef::new(&x, rows, inputs, inputs);
    gemm(dy_matrix, x_matrix, &mut weight.tensor.values_mut()?, inputs, 1.0, weight.accumulate);
    bias.map_or(Ok(()), |bias| backward_bias(dy, bias))
}

/// Computes bias (+)= Σ over rows of dy.
pub(super) fn backward_bias(dy: &Tensor, bias: &GradientTarget) -> Result<()> {
    let rows = dy.shape().rows();
    let outputs = dy.shape().columns();
    let dy = dy.values()?;
    let dy: &[f32] = &dy;
    columns::sum_rows(rows, &mut bias.tensor.values_mut()?, bias.accumulate, |row, columns, sum| {
        let dy = &dy[row * outputs..][columns];
        sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
    });
    Ok(())
}
