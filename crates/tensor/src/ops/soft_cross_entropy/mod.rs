//! Softmax cross-entropy against a distribution over classes: label smoothing, and mixtures of two classes.
//!
//! A row's distribution is (1 − smoothing) · (share · one-hot(class) + (1 − share) · one-hot(other)) +
//! smoothing / classes, as in PyTorch's `cross_entropy` with `label_smoothing`. The gradient overwrites the
//! scores as in [`cross_entropy`](super::cross_entropy).

mod cpu;
pub(crate) mod cuda;
mod targets;

pub use targets::{MIXED, SHARES, is_mixed};

use device::{Backend, Category, DType, Request, dispatch};

use super::cross_entropy::{Mean, Output, Scores};
use super::{check, padding};
use crate::{Result, Tensor};

/// Computes the mean cross-entropy of `logits_tv [.., classes]`, f32 or a half type, and its gradient, as
/// [`cross_entropy::forward_mean`](super::cross_entropy::forward_mean). `targets` are u32: one class per row,
/// or [`MIXED`] values per row. Ignored rows have no loss and no gradient.
///
/// # Errors
/// Shapes or types that do not agree, no row, a class outside 0..classes (on a GPU it ends the process's use
/// of the device), out of memory.
pub fn forward(
    logits_tv: impl Into<Scores>,
    targets: &Tensor,
    smoothing: f32,
    mean: Mean<'_>,
    with_gradient: bool,
) -> Result<Output> {
    const OPERATOR: &str = "soft_cross_entropy.forward";
    let Scores { tensor: logits_tv, classes } = logits_tv.into();
    let dtype = check::computed(OPERATOR, &[("logits", &logits_tv)])?;
    check::dtype(OPERATOR, "targets", targets, DType::U32)?;
    check::not_empty(OPERATOR, "logits", &logits_tv)?;
    mean.check(OPERATOR)?;
    let rows = logits_tv.shape().rows();
    let stride = logits_tv.shape().columns();
    padding::check(OPERATOR, "logits", &logits_tv, classes)?;
    let each = if is_mixed(targets, rows) { MIXED } else { 1 };
    if targets.elements() != each * rows {
        let expected = format!("{rows} or {MIXED} · {rows} elements");
        return Err(check::wrong(OPERATOR, "targets", targets, expected));
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
            let targets = targets::Targets::new(&targets.read::<u32>()?, each);
            check::indices(OPERATOR, &targets.classes(), classes)?;
            let divisor = mean.divisor(targets.counted())?;
            let weight = mean.scale / divisor as f32;
            let rows = [classes, stride];
            let total = dispatch!(
                dtype,
                T => match with_gradient {
                    false => cpu::losses::<T>(&scores_tv.read::<T>()?, &targets, rows, smoothing),
                    true => cpu::losses_and_gradient::<T>(
                        &mut scores_tv.write::<T>()?, &targets, rows, smoothing, weight,
                    ),
                },
                _ => 0.0,
            );
            loss.set(&[mean.of_total(total, divisor)])?;
        }
        Backend::Cuda => {
            let call = cuda::Call { each, smoothing, mean, gradient: with_gradient };
            cuda::forward(OPERATOR, (&scores_tv, classes), targets, call, &workspace, &loss)?;
        }
    }
    Ok(Output { loss, gradient: with_gradient.then_some(scores_tv) })
}
