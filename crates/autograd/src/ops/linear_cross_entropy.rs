//! The output head of a language model with its mean cross-entropy, whose scores are computed in pieces of
//! the vocabulary.

use tensor::Tensor;
use tensor::ops::linear_cross_entropy as operator;

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, ready, target};
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// Backward of [`linear_cross_entropy`], which computes the scores a second time.
#[derive(Debug)]
pub struct LinearCrossEntropyRule {
    operands: operator::Operands,
    statistics: operator::Statistics,
    settings: operator::Settings,
    weight: Weight,
    /// Gradient of the loss, from the input half to the weight half.
    factor: Option<Tensor>,
    /// Whether the input half also computed the weight's gradient.
    whole: bool,
}

/// `scale` times the mean cross-entropy of the scores `x · weightᵀ` against `targets`: `x` is `[.., in]`,
/// `weight` `[vocabulary, in]`, `targets` has one u32 per row. Errors: as [`operator::forward`].
pub fn linear_cross_entropy(
    tape: &Tape,
    x: Var,
    weight: &Weight,
    targets: &Tensor,
    settings: operator::Settings,
) -> Result<Var> {
    tape.begin("linear_cross_entropy")?;
    let source = x.source();
    let (x, matrix, targets) = (x.into_tensor(), weight.tensor().clone(), targets.clone());
    let operands = operator::Operands { x, weight: matrix, targets };
    let forward = operator::forward(&operands, &settings);
    let operator::Output { loss, statistics } = named("linear_cross_entropy", forward)?;
    let weight = weight.clone();
    tape.record_one(&[source], loss, || LinearCrossEntropyRule {
        operands,
        statistics,
        settings,
        weight,
        factor: None,
        whole: false,
    })
}

impl Rule for LinearCrossEntropyRule {
    fn operator(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.operands.x), Saved::new("statistics", &self.statistics.rows)]
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let factor = only(outputs)?;
        let input = match wanted[0] {
            true => {
                operator::backward(&self.operands, &self.statistics, &self.settings, &factor, true, None)?
            }
            false => None,
        };
        self.factor = Some(factor);
        Ok(vec![input])
    }

    /// Also computes the weight's gradient, because each piece of the scores serves both.
    fn backward(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
        sink: &mut dyn GradientSink,
    ) -> Result<Vec<Option<Tensor>>> {
        let (factor, matrix) = (only(outputs)?, target(sink, &self.weight)?);
        let (operands, settings) = (&self.operands, &self.settings);
        self.whole = true;
        if !wanted[0] && matrix.is_none() {
            return Ok(vec![None]);
        }
        let statistics = &self.statistics;
        let input = operator::backward(operands, statistics, settings, &factor, wanted[0], matrix.as_ref())?;
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        if let (false, Some(factor)) = (self.whole, &self.factor)
            && let Some(matrix) = target(sink, &self.weight)?
        {
            let (operands, settings) = (&self.operands, &self.settings);
            operator::backward(operands, &self.statistics, settings, factor, false, Some(&matrix))?;
        }
        let weight = self.weight.clone();
        drop(self);
        ready(sink, &weight)
    }
}
