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
pub fn maximum(x_nhwc: &Tensor, windows: &Windows) -> Result<Tensor> {
    pool("pooling.maximum", x_nhwc, windows, Kind::Maximum)
}

/// Returns the mean of each window and channel. [`Windows::counts_padding`] determines its divisor.
pub fn average(x_nhwc: &Tensor, windows: &Windows) -> Result<Tensor> {
    pool("pooling.average", x_nhwc, windows, Kind::Average)
}

/// Computes the gradient of the input of [`maximum`] from the output's gradient, the input and the output. Of
/// several equal largest elements of a window, the first gets its gradient.
pub fn maximum_backward(
    dy_nhwc: &Tensor,
    x_nhwc: &Tensor,
    y_nhwc: &Tensor,
    windows: &Windows,
) -> Result<Tensor> {
    const OPERATOR: &str = "pooling.maximum_backward";
    check::computed(OPERATOR, &[("x", x_nhwc), ("y", y_nhwc), ("dy", dy_nhwc)])?;
    let shape = windows.shape(OPERATOR, x_nhwc)?;
    check::shape(OPERATOR, "y", y_nhwc, shape.output())?;
    check::shape(OPERATOR, "dy", dy_nhwc, shape.output())?;
    let dx_nhwc = x_nhwc.like(x_nhwc.dtype(), request(OPERATOR))?;
    let positions = Tensor::workspace(x_nhwc.device(), OPERATOR, cuda::positions_bytes(&shape))?;
    match x_nhwc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::maximum_backward(&shape, dy_nhwc, x_nhwc, y_nhwc, &dx_nhwc)?,
        Backend::Cuda => cuda::maximum_backward(OPERATOR, dy_nhwc, x_nhwc, &positions, &dx_nhwc, &shape)?,
    }
    Ok(dx_nhwc)
}

/// Computes the gradient of the input of [`average`], of height and width `size`, from the output's gradient.
pub fn average_backward(dy_nhwc: &Tensor, size: [usize; 2], windows: &Windows) -> Result<Tensor> {
    const OPERATOR: &str = "pooling.average_backward";
    check::computed(OPERATOR, &[("dy", dy_nhwc)])?;
    check::rank(OPERATOR, "dy", dy_nhwc, 4)?;
    let [batch, channels] = [dy_nhwc.shape().dims()[0], dy_nhwc.shape().columns()];
    let input = [batch, size[0], size[1], channels];
    let shape = windows.shape_of(OPERATOR, dy_nhwc, input)?;
    check::shape(OPERATOR, "dy", dy_nhwc, shape.output())?;
    let dx_nhwc = Tensor::empty(dy_nhwc.device(), input, dy_nhwc.dtype(), request(OPERATOR))?;
    match dy_nhwc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::average_backward(&shape, dy_nhwc, &dx_nhwc)?,
        Backend::Cuda => cuda::pool(OPERATOR, "average_backward", &[dy_nhwc], &dx_nhwc, &shape)?,
    }
    Ok(dx_nhwc)
}

fn request(operator: &'static str) -> Request {
    Request::new(Category::ActivationGradient, operator)
}

#[derive(Clone, Copy)]
enum Kind {
    Maximum,
    Average,
}

fn pool(operator: &'static str, x_nhwc: &Tensor, windows: &Windows, kind: Kind) -> Result<Tensor> {
    check::computed(operator, &[("x", x_nhwc)])?;
    let shape = windows.shape(operator, x_nhwc)?;
    let request = Request::new(Category::Activation, operator);
    let y_nhwc = Tensor::empty(x_nhwc.device(), shape.output(), x_nhwc.dtype(), request)?;
    match (x_nhwc.device().backend(), kind) {
        (Backend::Meta, _) => {}
        (Backend::Cpu, Kind::Maximum) => cpu::maximum(&shape, x_nhwc, &y_nhwc)?,
        (Backend::Cpu, Kind::Average) => cpu::average(&shape, x_nhwc, &y_nhwc)?,
        (Backend::Cuda, Kind::Maximum) => cuda::pool(operator, "maximum", &[x_nhwc], &y_nhwc, &shape)?,
        (Backend::Cuda, Kind::Average) => cuda::pool(operator, "average", &[x_nhwc], &y_nhwc, &shape)?,
    }
    Ok(y_nhwc)
}
