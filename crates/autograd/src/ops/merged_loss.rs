//! The loss of rows whose statistics are gathered: their mean, or that of the pass's pairs of answers.

use tensor::Tensor;
use tensor::ops::linear_cross_entropy::divided;
use tensor::ops::linear_cross_entropy::{Output, Statistics};
use tensor::ops::preference::{self, Sequences};

use crate::pass::PreferencePass;
use crate::tape::Tape;

/// Merges the statistics of all runs of classes, `parts [runs, 3, rows]`. Returns `scale` times the mean loss
/// of rows, a scalar; where the pass has pairs of answers, their loss and its figures
/// ([`preference::VALUES`]), or if they are not learnt from the score of each answer.
///
/// # Errors
/// As [`divided::merge`] and [`preference::forward`].
pub(super) fn merged_loss(
    tape: &Tape,
    parts: &Tensor,
    targets: &Tensor,
    classes: usize,
    scale: f32,
) -> tensor::Result<Output> {
    let Some(PreferencePass { answers, reference, objective }) = &tape.pass().preference else {
        return divided::merge(parts, targets, classes, scale);
    };
    let statistics = divided::merge_rows(parts, targets, classes)?;
    let losses = statistics.losses()?;
    let sequences = Sequences { losses: &losses, targets, answers };
    let Some(objective) = objective else {
        return Ok(Output { loss: preference::scores(sequences)?, statistics });
    };
    let preference::Output { values, weights } =
        preference::forward(sequences, reference.as_ref(), *objective, scale)?;
    Ok(Output { loss: values, statistics: Statistics { weights: Some(weights), ..statistics } })
}
