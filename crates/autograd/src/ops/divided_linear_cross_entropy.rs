//! The output head of a language model, whose classes are divided in lanes, with its mean cross-entropy;
//! scores are computed in pieces of each lane's classes.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::linear_cross_entropy::divided::{self, ClassRun};
use tensor::ops::linear_cross_entropy::{Operands, Output, Settings, Statistics};

use super::cast::autocast_all;
use super::lanes::LanePlane;
use super::merged_loss::merged_loss;
use super::{named, only};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, Target, ready, target};
use crate::tape::{Source, Tape, Var};
use crate::weight::Weight;

const OPERATOR: &str = "divided_linear_cross_entropy";

/// Backward of [`divided_linear_cross_entropy`], which computes the scores a second time.
#[derive(Debug)]
pub struct DividedLinearCrossEntropyRule {
    lanes: Vec<LaneHead>,
    targets: Tensor,
    statistics: Statistics,
    settings: Settings,
    /// Gradient of the loss, from the input half to the weight half.
    factor: Option<Tensor>,
    /// Whether the input half also computed the gradients of the weights.
    whole: bool,
}

/// A lane that is here.
#[derive(Debug)]
struct LaneHead {
    x: Tensor,
    /// `[classes, in]`.
    weight: Weight,
    run: ClassRun,
}

impl LaneHead {
    /// The operands of a call, with the weight in the type of `x`.
    fn operands(&self, targets: &Tensor) -> tensor::Result<Operands> {
        let weight = self.weight.values(self.x.dtype())?;
        Ok(Operands { x: self.x.clone(), weight, targets: targets.clone() })
    }
}

/// `settings.scale` times the mean cross-entropy of the scores `x · weightᵀ` of all lanes against `targets`,
/// one u32 per row among all classes, or the loss of the pass's pairs of answers with its figures. `x` has
/// for each lane that is here, of `lanes` in all, the same rows `[.., in]`, and `weights` its `[classes,
/// in]`.
///
/// # Errors
/// No lane; as [`divided::statistics_of`] and [`divided::merge`]; a failed collective.
pub fn divided_linear_cross_entropy(
    tape: &Tape,
    mut x: Vec<Var>,
    weights: &[&Weight],
    lanes: usize,
    targets: &Tensor,
    settings: Settings,
) -> Result<Var> {
    autocast_all(tape, OPERATOR, &mut x)?;
    tape.begin(OPERATOR)?;
    let planes = LanePlane::of(tape);
    let sources: Vec<Source> = x.iter().map(Var::source).collect();
    let (first, rows, here) = (planes.first_lane(x.len()), targets.elements(), x.len());
    let classes = weights.first().ok_or(AutogradError::NotRecorded)?.shape().rows();
    let head = |(lane, (x, weight)): (usize, (Var, &&Weight))| {
        let run = ClassRun { first: (first + lane) * classes, vocabulary: lanes * classes };
        LaneHead { x: x.into_tensor(), weight: (*weight).clone(), run }
    };
    let heads: Vec<LaneHead> = x.into_iter().zip(weights).enumerate().map(head).collect();
    let request = Request::new(Category::Activation, OPERATOR);
    let own = Tensor::empty(targets.device(), [here, 3, rows], DType::F32, request)?;
    let of_lane = |(lane, head): (usize, &LaneHead)| -> tensor::Result<()> {
        let statistics = own.view(lane * 3 * rows, [3, rows])?;
        divided::statistics_of(&head.operands(targets)?, head.run, &settings, &statistics)
    };
    named(OPERATOR, heads.iter().enumerate().try_for_each(of_lane))?;
    let all = planes.gather(own, request)?;
    let merged = merged_loss(tape, &all, targets, classes, settings.scale);
    let settings = Settings { scale: tape.pass().mean(settings.scale).scale, ..settings };
    let Output { loss, statistics } = named(OPERATOR, merged)?;
    let targets = targets.clone();
    tape.record_one(&sources, loss, || DividedLinearCrossEntropyRule {
        lanes: heads,
        targets,
        statistics,
        settings,
        factor: None,
        whole: false,
    })
}

impl DividedLinearCrossEntropyRule {
    /// The gradient of a lane's input if `wanted`, in f32, and that of its weight in `matrix`.
    fn gradients(
        &self,
        lane: &LaneHead,
        factor: &Tensor,
        wanted: bool,
        matrix: Option<&Target>,
    ) -> Result<Option<Tensor>> {
        let (operands, call) = (lane.operands(&self.targets)?, (lane.run, &self.settings));
        Ok(divided::gradients_of(&operands, &self.statistics, call, factor, wanted, matrix)?)
    }
}

impl Rule for DividedLinearCrossEntropyRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let x = self.lanes.iter().map(|lane| Saved::new("x", &lane.x));
        let weights = self.statistics.weights.iter().map(|weights| Saved::new("weights", weights));
        x.chain([Saved::new("statistics", &self.statistics.rows)]).chain(weights).collect()
    }

    fn has_weights(&self) -> bool {
        self.lanes.iter().any(|lane| lane.weight.is_trained())
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let factor = only(outputs)?;
        let input = |(lane, wanted): (&LaneHead, &bool)| match wanted {
            true => self.gradients(lane, &factor, true, None),
            false => Ok(None),
        };
        let inputs = self.lanes.iter().zip(wanted).map(input).collect::<Result<_>>()?;
        self.factor = Some(factor);
        Ok(inputs)
    }

    /// Also computes the gradients of the weights, because each piece of the scores serves both.
    fn backward(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
        sink: &mut dyn GradientSink,
    ) -> Result<Vec<Option<Tensor>>> {
        let factor = only(outputs)?;
        self.whole = true;
        let mut inputs = Vec::with_capacity(self.lanes.len());
        for (lane, wanted) in self.lanes.iter().zip(wanted) {
            let matrix = target(sink, &lane.weight)?;
            inputs.push(match *wanted || matrix.is_some() {
                true => self.gradients(lane, &factor, *wanted, matrix.as_ref())?,
                false => None,
            });
        }
        Ok(inputs)
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        if let (false, Some(factor)) = (self.whole, &self.factor) {
            for lane in &self.lanes {
                if let Some(matrix) = target(sink, &lane.weight)? {
                    self.gradients(lane, factor, false, Some(&matrix))?;
                }
            }
        }
        let weights: Vec<Weight> = self.lanes.iter().map(|lane| lane.weight.clone()).collect();
        drop(self);
        weights.iter().try_for_each(|weight| ready(sink, weight))
    }
}
