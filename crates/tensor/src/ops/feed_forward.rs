//! The two linear layers of a transformer block with an activation between them: y = activation(x · W1ᵀ + b1)
//! · W2ᵀ + b2.
//!
//! They are one operator because matmul epilogues apply GELU's tanh form and its derivative: in the first
//! matmul of the forward pass, and in the matmul that computes the gradient of its result. The other backward
//! functions are those of [`linear`].

use device::{Backend, Epilogue};

use super::{Activation, activation, check, gpu, linear};
use crate::{Result, Tensor};

/// Result of [`forward`].
#[derive(Clone, Debug)]
pub struct Output {
    /// The output, `[.., out]`.
    pub output: Tensor,
    /// The first layer before the activation, x · W1ᵀ + b1, `[.., hidden]`.
    pub pre_activation: Tensor,
    /// The first layer after the activation, `[.., hidden]`.
    pub activated: Tensor,
}

/// Computes both layers for `x [.., in]`, `w1 [hidden, in]`, `b1 [hidden]`, `w2 [out, hidden]`, `b2 [out]`,
/// all f32 or all bf16, giving `[.., out]`. Either bias may be absent. Allocates the pre-activation, then its
/// activation, then the output.
pub fn forward(
    x: &Tensor,
    w1: &Tensor,
    b1: Option<&Tensor>,
    w2: &Tensor,
    b2: Option<&Tensor>,
    activation: Activation,
) -> Result<Output> {
    const OPERATOR: &str = "feed_forward.forward";
    let (pre_activation, activated) = linear::activated(OPERATOR, x, w1, b1, activation)?;
    let output = linear::plain(OPERATOR, &activated, w2, b2, false)?;
    Ok(Output { output, pre_activation, activated })
}

/// Computes [`forward`] for recomputation: the output is allocated and not computed, because nothing reads
/// it.
pub fn forward_again(
    x: &Tensor,
    w1: &Tensor,
    b1: Option<&Tensor>,
    w2: &Tensor,
    b2: Option<&Tensor>,
    activation: Activation,
) -> Result<Output> {
    const OPERATOR: &str = "feed_forward.forward";
    let (pre_activation, activated) = linear::activated(OPERATOR, x, w1, b1, activation)?;
    let output = linear::allocate(OPERATOR, &activated, w2, b2)?;
    Ok(Output { output, pre_activation, activated })
}

/// Computes the gradient of the pre-activation, `[.., hidden]`, from the output's gradient `dy [.., out]`:
/// (dy · w2) ∘ activation'(pre_activation).
pub fn backward_input_hidden(
    dy: &Tensor,
    w2: &Tensor,
    pre_activation: &Tensor,
    activation: Activation,
) -> Result<Tensor> {
    const OPERATOR: &str = "feed_forward.backward_input_hidden";
    let operands = [("dy", dy), ("w2", w2), ("pre_activation", pre_activation)];
    check::computed(OPERATOR, &operands)?;
    let hidden = linear::allocate_gradient(OPERATOR, dy, w2)?;
    check::shape(OPERATOR, "pre_activation", pre_activation, hidden.shape())?;
    if dy.device().backend() == Backend::Cuda
        && activation == Activation::Gelu
        && linear::cuda::has_gelu_epilogue(&hidden)
        && gpu::aligned(&[pre_activation])
    {
        let epilogue = Epilogue::GeluGradient { pre: pre_activation.region() };
        linear::matmul_backward_input(dy, w2, &hidden, epilogue)?;
        return Ok(hidden);
    }
    linear::matmul_backward_input(dy, w2, &hidden, Epilogue::None)?;
    activation::backward(hidden, pre_activation, activation)
}
