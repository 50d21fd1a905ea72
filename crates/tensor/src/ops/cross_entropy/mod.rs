//! Softmax cross-entropy of class scores, with its gradient in the same pass.
//!
//! The gradient, scale · (softmax − one-hot) / rows, overwrites the scores, so that no probabilities are
//! stored beside them: the scores are the largest tensor of a language model.

mod cpu;
pub(crate) mod cuda;
mod mean;
mod scores;

pub use cpu::IGNORED;
pub use mean::Mean;
pub use scores::Scores;

use device::{Backend, Category, DType, Request};

use super::{check, padding};
use crate::{Result, Tensor};

/// Results of [`forward`].
#[derive(Clone, Debug)]
pub struct Output {
    /// The [`Mean`] of −ln softmax\[target\] over rows that are not ignored, a scalar f32; 0 if all rows are
    /// ignored.
    pub loss: Tensor,
    /// Gradient of `loss` with respect to the scores, of their shape.
    pub gradient: Option<Tensor>,
}

/// Computes the loss of `logits_tv [.., vocab]`, f32 or bf16, and `targets_t`, u32 of the shape without
/// `vocab`. With `with_gradient`, the gradient overwrites `logits_tv` if no other view of their storage
/// exists, and else is a new tensor. Rows with target [`IGNORED`] have no loss and no gradient.
///
/// # Errors
/// Shapes or types that do not agree, no row, a target outside 0..vocab (on a GPU it ends the process's use
/// of the device), out of memory.
pub fn forward(logits_tv: Tensor, targets_t: &Tensor, scale: f32, with_gradient: bool) -> Result<Output> {
    forward_mean(logits_tv, targets_t, Mean::of_rows(scale), with_gradient, None)
}

/// Computes [`forward`] with the mean `mean`, of scores whose rows may be padded. The gradient is multiplied
/// by `loss_scale`, a scalar f32 on the device, before it is rounded.
///
/// # Errors
/// As [`forward`]; a divisor that is not one u32.
pub fn forward_mean(
    logits_tv: impl Into<Scores>,
    targets_t: &Tensor,
    mean: Mean<'_>,
    with_gradient: bool,
    loss_scale: Option<&Tensor>,
) -> Result<Output> {
    const OPERATOR: &str = "cross_entropy.forward";
    let Scores { tensor: logits_tv, classes: vocab } = logits_tv.into();
    check::computed(OPERATOR, &[("logits", &logits_tv)])?;
    check::dtype(OPERATOR, "targets", targets_t, DType::U32)?;
    check::not_empty(OPERATOR, "logits", &logits_tv)?;
    mean.check(OPERATOR)?;
    if let Some(factor) = loss_scale {
        check::f32s(OPERATOR, &[("loss_scale", factor)])?;
        check::elements(OPERATOR, "loss_scale", factor, 1)?;
    }
    let rows = logits_tv.shape().rows();
    let stride = logits_tv.shape().columns();
    padding::check(OPERATOR, "logits", &logits_tv, vocab)?;
    if targets_t.elements() != rows {
        return Err(check::wrong(OPERATOR, "targets", targets_t, format!("{rows} elements")));
    }
    let device = logits_tv.device().clone();
    let loss = Tensor::empty(&device, [], DType::F32, Request::new(Category::Activation, OPERATOR))?;
    // The gradient overwrites the scores.
    let scores_tv = match with_gradient {
        true => logits_tv.into_unique(Request::new(Category::ActivationGradient, OPERATOR))?,
        false => logits_tv,
    };
    // One f32 loss per row.
    let workspace = Tensor::workspace(&device, OPERATOR, 4 * rows)?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let targets_t = targets_t.read::<u32>()?;
            let counted: Vec<u32> = targets_t.iter().copied().filter(|target| *target != IGNORED).collect();
            check::indices(OPERATOR, &counted, vocab)?;
            let divisor = mean.divisor(counted.len())?;
            let total = match with_gradient {
                false => cpu::losses(&scores_tv.values()?, &targets_t, [vocab, stride]),
                true => {
                    let mut weight = mean.scale / divisor as f32;
                    if let Some(factor) = loss_scale {
                        weight *= factor.values()?[0];
                    }
                    let mut scores_tv = scores_tv.values_mut()?;
                    cpu::losses_and_gradient(&mut scores_tv, &targets_t, [vocab, stride], weight)
                }
            };
            loss.set(&[mean.of_total(total, divisor)])?;
        }
        Backend::Cuda => {
            let slope = with_gradient.then_some(cuda::Slope { loss_scale });
            cuda::forward(OPERATOR, (&scores_tv, vocab), targets_t, slope, mean, &workspace, &loss)?;
        }
    }
    Ok(Output { loss, gradient: with_gradient.then_some(scores_tv) })
}
