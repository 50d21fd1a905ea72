//! Largest magnitudes of gradients, measured by the operators that produce them.

use device::{Backend, Category, Request};

use super::cuda;
use super::quantised::MULTIPLE;
use crate::ops::{Activation, activation, check, gate, gpu};
use crate::{Result, Tensor};

/// Allocates the words that receive the largest magnitude of a gradient like `like`; `None` on the CPU.
fn cells(like: &Tensor, operator: &'static str) -> Result<Option<Tensor>> {
    gpu::cells(like.device(), Request::new(Category::ActivationGradient, operator))
}

/// Computes [`activation::backward`] in the memory of `dy`, and measures the result's largest magnitude on a
/// GPU.
///
/// # Errors
/// As [`activation::backward`], and a number of columns that is no multiple of [`MULTIPLE`].
pub fn backward_activation(dy: Tensor, saved: &Tensor, activation: Activation) -> Result<Tensor> {
    const OPERATOR: &str = "fp8_linear.backward_activation";
    if !dy.is_unique() || activation == Activation::None {
        return activation::backward(dy, saved, activation);
    }
    let Some(cells) = cells(&dy, OPERATOR)? else { return activation::backward(dy, saved, activation) };
    check::computed(OPERATOR, &[("dy", &dy), ("saved", saved)])?;
    check::shape(OPERATOR, "saved", saved, dy.shape())?;
    if !dy.shape().columns().is_multiple_of(MULTIPLE) {
        return Err(check::wrong(OPERATOR, "dy", &dy, format!("a multiple of {MULTIPLE} columns")));
    }
    if dy.device().backend() == Backend::Cuda {
        cuda::backward_activation(&dy, saved, activation, &cells)?;
    }
    Ok(dy.with_maxima(Some(cells)))
}

/// Computes [`gate::backward`], and measures the largest magnitude of the gradients that replace `pair`.
pub fn backward_gate(pair: Tensor, hidden: &Tensor, activation: Activation) -> Result<Tensor> {
    let cells = cells(&pair, "fp8_linear.backward_gate")?;
    gate::backward_measured(&pair, hidden, activation.into(), cells.as_ref())?;
    Ok(pair.with_maxima(cells))
}
