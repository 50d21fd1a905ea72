//! Maximum and average pooling of channels-last images, `[batch, height, width, channels]`.

mod cpu;
pub(crate) mod cuda;
mod windows;

use device::{Backend, Category, Request};

use super::check;
use crate::{Result, Tensor};
pub use windows::Windows;

/// Returns the largest element of each window and channel; NaN if the window has a NaN. Padding is ignored.
///
/// # Errors
/// Windows that do not fit the images, a type that operators do not compute in, out of memory.
pub fn maximum(x: &Tensor, windows: &Windows) -> Result<Tensor> {
    pool("pooling.maximum", x, windows, Kind::Maximum)
}

/// Returns the mean of each window and channel. [`Windows::counts_padding`] determines its divisor.
pub fn average(x: &Tensor, windows: &Windows) -> Result<Tensor> {
    pool("pooling.average", x, windows, Kind::Average)
}

/// Computes the gradient of the input of [`maximum`] from the output's gradient, the input and the output. Of
/// several equal largest elements of a window, the first gets its gradient.
pub fn maximum_backward(dy: &Tensor, x: &Tensor, y: &Tensor, windows: &Windows) -> Result<Tensor> {
    const OPERATOR: &str = "pooling.maximum_backward";
    check::computed(OPERATOR, &[("x", x), ("y", y), ("dy", dy)])?;
    let shape = windows.shape(OPERATOR, x)?;
    check::shape(OPERATOR, "y", y, shape.output())?;
    check::shape(OPERATOR, "dy", dy, shape.output())?;
    let dx = x.like(x.dtype(), request(OPERATOR))?;
    let positions = Tensor::workspace(x.device(), OPERATOR, cuda::positions_bytes(&shape))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::maximum_backward(&shape, dy, x, y, &dx)?,
        Backend::Cuda => cuda::maximum_backward(OPERATOR, dy, x, &positions, &dx, &shape)?,
    }
    Ok(dx)
}

/// Computes the gradient of the input of [`average`], of height and width `size`, from the output's gradient.
pub fn average_backward(dy: &Tensor, size: [usize; 2], windows: &Windows) -> Result<Tensor> {
    const OPERATOR: &str = "pooling.average_backward";
    check::computed(OPERATOR, &[("dy", dy)])?;
    check::rank(OPERATOR, "dy", dy, 4)?;
    let [batch, channels] = [dy.shape().dims()[0], dy.shape().columns()];
    let input = [batch, size[0], size[1], channels];
    let shape = windows.shape_of(OPERATOR, dy, input)?;
    check::shape(OPERATOR, "dy", dy, shape.output())?;
    let dx = Tensor::empty(dy.device(), input, dy.dtype(), request(OPERATOR))?;
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::average_backward(&shape, dy, &dx)?,
        Backend::Cuda => cuda::pool(OPERATOR, "average_backward", &[dy], &dx, &shape)?,
    }
    Ok(dx)
}

fn request(operator: &'static str) -> Request {
    Request::new(Category::ActivationGradient, operator)
}

#[derive(Clone, Copy)]
enum Kind {
    Maximum,
    Average,
}

fn pool(operator: &'static str, x: &Tensor, windows: &Windows, kind: Kind) -> Result<Tensor> {
    check::computed(operator, &[("x", x)])?;
    let shape = windows.shape(operator, x)?;
    let request = Request::new(Category::Activation, operator);
    let output = Tensor::empty(x.device(), shape.output(), x.dtype(), request)?;
    match (x.device().backend(), kind) {
        (Backend::Meta, _) => {}
        (Backend::Cpu, Kind::Maximum) => cpu::maximum(&shape, x, &output)?,
        (Backend::Cpu, Kind::Average) => cpu::average(&shape, x, &output)?,
        (Backend::Cuda, Kind::Maximum) => cuda::pool(operator, "maximum", &[x], &output, &shape)?,
        (Backend::Cuda, Kind::Average) => cuda::pool(operator, "average", &[x], &output, &shape)?,
    }
    Ok(output)
}
