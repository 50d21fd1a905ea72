//! Mean cross-entropy of scores whose classes are divided in lanes. Only statistics of rows are gathered.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::linear_cross_entropy::divided::{self, ClassRun};
use tensor::ops::linear_cross_entropy::{Output, Settings, Statistics};

use super::lanes::LanePlane;
use super::merged_loss::merged_loss;
use super::{named, only};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved};
use crate::tape::{Source, Tape, Var};

/// Backward of [`divided_cross_entropy`], which overwrites the scores.
#[derive(Debug)]
pub struct DividedCrossEntropyRule {
    /// Number of the first lane that is here.
    first: usize,
    lanes: usize,
    scores: Vec<Tensor>,
    targets: Tensor,
    statistics: Statistics,
    settings: Settings,
}

/// `settings.scale` times the mean over rows, or the loss of the pass's pairs of answers with its figures;
/// `scores` are those of the lanes that are here, of `lanes` in all, `[.., classes]` each, and `targets` has
/// one u32 per row, among all classes.
///
/// # Errors
/// No lane; as [`divided::statistics`] and [`divided::merge`]; a failed collective.
pub fn divided_cross_entropy(
    tape: &Tape,
    scores: Vec<Var>,
    lanes: usize,
    targets: &Tensor,
    settings: Settings,
) -> Result<Var> {
    const OPERATOR: &str = "divided_cross_entropy";
    tape.begin(OPERATOR)?;
    let planes = LanePlane::of(tape);
    let sources: Vec<Source> = scores.iter().map(Var::source).collect();
    let scores: Vec<Tensor> = scores.into_iter().map(Var::into_tensor).collect();
    let classes = scores.first().ok_or(AutogradError::NotRecorded)?.shape().columns();
    let (first, rows, request) =
        (planes.first_lane(scores.len()), targets.elements(), Request::new(Category::Activation, OPERATOR));
    let own = Tensor::empty(targets.device(), [scores.len(), 3, rows], DType::F32, request)?;
    for (lane, scores) in scores.iter().enumerate() {
        let of_lane = own.view(lane * 3 * rows, [3, rows])?;
        let run = ClassRun { first: (first + lane) * classes, vocabulary: lanes * classes };
        named(OPERATOR, divided::statistics(scores, targets, run, settings.soft_cap, &of_lane))?;
    }
    let all = planes.gather(own, request)?;
    let merged = merged_loss(tape, &all, targets, classes, settings.scale);
    let settings = Settings { scale: tape.pass().mean(settings.scale).scale, ..settings };
    let Output { loss, statistics } = named(OPERATOR, merged)?;
    tape.record_one(&sources, loss, || DividedCrossEntropyRule {
        first,
        lanes,
        scores,
        targets: targets.clone(),
        statistics,
        settings,
    })
}

impl Rule for DividedCrossEntropyRule {
    fn operator(&self) -> &'static str {
        "divided_cross_entropy"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let scores = self.scores.iter().map(|scores| Saved::new("scores", scores));
        let weights = self.statistics.weights.iter().map(|weights| Saved::new("weights", weights));
        scores.chain([Saved::new("statistics", &self.statistics.rows)]).chain(weights).collect()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let factor = only(outputs)?;
        let request = Request::new(Category::ActivationGradient, "divided_cross_entropy");
        let mut gradients = Vec::with_capacity(self.scores.len());
        for (lane, scores) in std::mem::take(&mut self.scores).into_iter().enumerate() {
            let gradient = match scores.is_unique() {
                true => scores,
                false => {
                    let copy = Tensor::empty(scores.device(), scores.shape(), scores.dtype(), request)?;
                    copy.copy_from(&scores)?;
                    copy
                }
            };
            let classes = gradient.shape().columns();
            let run = ClassRun { first: (self.first + lane) * classes, vocabulary: self.lanes * classes };
            divided::gradient(&gradient, &self.targets, &self.statistics, run, &self.settings, &factor)?;
            gradients.push(Some(gradient));
        }
        Ok(gradients)
    }
}
