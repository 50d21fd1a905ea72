//! A gate of every element, or of every row: y = x · sigmoid(z).

pub(crate) mod cuda;

use device::parallel::for_pieces;
use device::{Backend, Category, DType, Request};

use super::math::sum2;
use super::{check, rows};
use crate::{Result, Tensor};

/// Computes `x · sigmoid(z)`. `z` has the shape of `x`, or one column for each of its rows.
///
/// # Errors
/// Shapes or types that do not agree, out of memory.
pub fn forward(x: &Tensor, z: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "sigmoid_gate.forward";
    let dtype = check_operands(OPERATOR, x, z)?;
    let y = x.like(dtype, Request::new(Category::Activation, OPERATOR))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x_values = x.values()?;
            let z_values = z.values()?;
            let x_values: &[f32] = &x_values;
            let z_values: &[f32] = &z_values;
            let [columns, gates] = [x.shape().columns(), z.shape().columns()];
            let per_task = rows::per_task(columns);
            for_pieces(&mut y.values_mut()?, per_task * columns, |index, y| {
                for (row, y) in y.chunks_exact_mut(columns).enumerate() {
                    let row = index * per_task + row;
                    for (c, y) in y.iter_mut().enumerate() {
                        *y = x_values[row * columns + c] * sigmoid(z_values[row * gates + c % gates]);
                    }
                }
            });
        }
        Backend::Cuda => cuda::forward(OPERATOR, x, z, &y)?,
    }
    Ok(y)
}

/// Computes the gradients of `x` and `z` from the output's gradient. A gate of a row sums over its columns.
pub fn backward(dy: &Tensor, x: &Tensor, z: &Tensor) -> Result<[Tensor; 2]> {
    const OPERATOR: &str = "sigmoid_gate.backward";
    let dtype = check_operands(OPERATOR, x, z)?;
    check::dtype(OPERATOR, "dy", dy, dtype)?;
    check::shape(OPERATOR, "dy", dy, x.shape())?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradients = [x.like(dtype, request)?, z.like(dtype, request)?];
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let of_x = x.values()?;
            let of_z = z.values()?;
            let of_y = dy.values()?;
            let of_x: &[f32] = &of_x;
            let of_z: &[f32] = &of_z;
            let of_y: &[f32] = &of_y;
            let [columns, gates] = [x.shape().columns(), z.shape().columns()];
            let per_task = rows::per_task(columns);
            for_pieces(&mut gradients[0].values_mut()?, per_task * columns, |index, dx| {
                for (at, dx) in dx.iter_mut().enumerate() {
                    let at = index * per_task * columns + at;
                    *dx = of_y[at] * sigmoid(of_z[at / columns * gates + at % columns % gates]);
                }
            });
            for_pieces(&mut gradients[1].values_mut()?, per_task * gates, |index, dz| {
                for (at, dz) in dz.iter_mut().enumerate() {
                    let at = index * per_task * gates + at;
                    let columns = columns / gates;
                    let elements = at * columns..(at + 1) * columns;
                    let value = sigmoid(of_z[at]);
                    let sum = sum2(&of_y[elements.clone()], &of_x[elements], |dy, x| dy * x);
                    *dz = sum * value * (1.0 - value);
                }
            });
        }
        Backend::Cuda => cuda::backward(OPERATOR, dy, x, z, &gradients)?,
    }
    Ok(gradients)
}

fn check_operands(operator: &'static str, x: &Tensor, z: &Tensor) -> Result<DType> {
    let dtype = check::computed(operator, &[("x", x), ("z", z)])?;
    check::not_empty(operator, "x", x)?;
    if z.shape() != check::with_columns(x.shape(), 1) {
        check::shape(operator, "z", z, x.shape())?;
    }
    Ok(dtype)
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}
