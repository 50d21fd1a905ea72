//! The loss of rows whose statistics are gathered: their mean, or that of the pass's pairs of answers.

use tensor::Tensor;
use tensor::ops::linear_cross_entropy::divided;
use tensor::ops::linear_cross_entropy::{Output, Statistics};
use tensor::ops::preference::{self, Sequences};

use crate::pass::PreferencePass;
use crate::tape::Tape;

/// Merges the statistics of all runs of classes, `parts [runs, 3, rows]`. Returns the pass's mean loss
/// of rows, times `scale`, a scalar; where the pass has pairs of answers, their loss and its figures
/// ([`preference::VALUES`]), or if they are not learnt from the score of each answer.
///
/// # Errors
/// As [`divided::merge`] and [`preference::forward`].
pub(in crate::ops) fn merged_loss(
    tape: &Tape,
    parts: &Tensor,
    targets: &Tensor,
    classes: usize,
    scale: f32,
) -> tensor::Result<Output> {
    let Some(PreferencePass { answers, reference, objective }) = &tape.pass().preference else {
        return divided::merge(parts, targets, classes, tape.pass().mean(scale));
    };
    let rows = divided::merge_rows(parts, targets, classes)?;
    let losses = Statistics::losses_of(&rows)?;
    let sequences = Sequences { losses: &losses, targets, answers };
    let Some(objective) = objective else {
        let loss = preference::scores(sequences)?;
        return Ok(Output { loss, statistics: Statistics::weighted(rows, None)? });
    };
    let count = tape.pass().target_count.as_ref();
    let preference::Output { values, weights } =
        preference::forward(sequences, reference.as_ref(), *objective, scale, count)?;
    Ok(Output { loss: values, statistics: Statistics::weighted(rows, Some(weights))? })
}
