//! Operands and results of batch normalisation.

use crate::Tensor;

/// Parameters of the layer, and whether ReLU follows.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a> {
    /// Weight of each channel, `[channels]`.
    pub weight: &'a Tensor,
    /// Bias of each channel, `[channels]`.
    pub bias: &'a Tensor,
    /// Number added to the variance before the square root.
    pub epsilon: f32,
    /// Whether ReLU follows, after the residual addition.
    pub relu: bool,
}

/// Results of the forward pass in training.
#[derive(Clone, Debug)]
pub struct Output {
    /// The result, of the input's shape.
    pub output: Tensor,
    /// Mean of each channel, `[channels]` f32.
    pub mean: Tensor,
    /// Reciprocal standard deviation of each channel, `[channels]` f32.
    pub rstd: Tensor,
}

/// Where ReLU passes the gradient of its output.
#[derive(Clone, Copy, Debug)]
pub enum Passes<'a> {
    /// Everywhere: there is no ReLU.
    Everywhere,
    /// Where this output of the forward pass is positive.
    ByOutput(&'a Tensor),
    /// Where the output is positive, recomputed from the input and this bias. For layers without a residual.
    ByInput {
        /// Bias of each channel, `[channels]`.
        bias: &'a Tensor,
    },
}

/// Tensors of the forward pass that backward reads.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// The input.
    pub x: &'a Tensor,
    /// Where ReLU passes the output's gradient.
    pub passes: Passes<'a>,
    /// Mean of each channel, `[channels]` f32.
    pub mean: &'a Tensor,
    /// Reciprocal standard deviation of each channel, `[channels]` f32.
    pub rstd: &'a Tensor,
}

/// Results of the backward pass.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Gradient of the input, of its shape.
    pub input: Tensor,
    /// Gradient of the residual, if requested.
    pub residual: Option<Tensor>,
    /// Gradients of weight and bias, `[2, channels]` f32.
    pub sums: Tensor,
}
