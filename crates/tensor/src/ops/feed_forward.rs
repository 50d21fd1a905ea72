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

/// Computes both layers for `x_td [.., in]`, `w1_fd [hidden, in]`, `b1_f [hidden]`, `w2_df [out, hidden]`,
/// `b2_d [out]`, all f32 or all bf16, giving `[.., out]`. Either bias may be absent. Allocates the
/// pre-activation, then its activation, then the output.
pub fn forward(
    x_td: &Tensor,
    w1_fd: &Tensor,
    b1_f: Option<&Tensor>,
    w2_df: &Tensor,
    b2_d: Option<&Tensor>,
    activation: Activation,
) -> Result<Output> {
    const OPERATOR: &str = "feed_forward.forward";
    let (pre_activation_tf, activated_tf) = linear::activated(OPERATOR, x_td, w1_fd, b1_f, activation)?;
    let output_td = linear::plain(OPERATOR, &activated_tf, w2_df, b2_d, false)?;
    Ok(Output { output: output_td, pre_activation: pre_activation_tf, activated: activated_tf })
}

/// Computes [`forward`] for recomputation: the output is allocated and not computed, because nothing reads
/// it.
pub fn forward_again(
    x_td: &Tensor,
    w1_fd: &Tensor,
    b1_f: Option<&Tensor>,
    w2_df: &Tensor,
    b2_d: Option<&Tensor>,
    activation: Activation,
) -> Result<Output> {
    const OPERATOR: &str = "feed_forward.forward";
    let (pre_activation_tf, activated_tf) = linear::activated(OPERATOR, x_td, w1_fd, b1_f, activation)?;
    let output_td = linear::allocate(OPERATOR, &activated_tf, w2_df, b2_d)?;
    Ok(Output { output: output_td, pre_activation: pre_activation_tf, activated: activated_tf })
}

/// Computes the gradient of the pre-activation, `[.., hidden]`, from the output's gradient `dy_td [.., out]`:
/// (dy · w2) ∘ activation'(pre_activation).
pub fn backward_input_hidden(
    dy_td: &Tensor,
    w2_df: &Tensor,
    pre_activation_tf: &Tensor,
    activation: Activation,
) -> Result<Tensor> {
    const OPERATOR: &str = "feed_forward.backward_input_hidden";
    let operands = [("dy", dy_td), ("w2", w2_df), ("pre_activation", pre_activation_tf)];
    check::computed(OPERATOR, &operands)?;
    let hidden_tf = linear::allocate_gradient(OPERATOR, dy_td, w2_df)?;
    check::shape(OPERATOR, "pre_activation", pre_activation_tf, hidden_tf.shape())?;
    if dy_td.device().backend() == Backend::Cuda
        && activation == Activation::Gelu
        && linear::cuda::has_gelu_epilogue(&hidden_tf)
        && gpu::aligned(&[pre_activation_tf])
    {
        let epilogue = Epilogue::GeluGradient { pre: pre_activation_tf.region() };
        linear::matmul_backward_input(dy_td, w2_df, &hidden_tf, epilogue)?;
        return Ok(hidden_tf);
    }
    linear::matmul_backward_input(dy_td, w2_df, &hidden_tf, Epilogue::None)?;
    activation::backward(hidden_tf, pre_activation_tf, activation)
}
