//! The loss of an output head that is here as a whole.

use tensor::Tensor;
use tensor::ops::linear_cross_entropy as operator;

use super::super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::sink::{GradientSink, Target, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

pub(super) const OPERATOR: &str = "linear_cross_entropy";

/// Backward of [`linear_cross_entropy`](super::linear_cross_entropy()) of a whole head, which computes the
/// scores a second time.
#[derive(Debug)]
pub struct LinearCrossEntropyRule {
    x: Tensor,
    targets: Tensor,
    statistics: operator::Statistics,
    settings: operator::Settings,
    weight: Weight,
    /// Gradient of the loss, from the input half to the weight half.
    factor: Option<Tensor>,
    /// Whether the input half also computed the weight's gradient.
    whole: bool,
}

/// The pass's mean, times `settings.scale`, of the cross-entropy of the scores `x · weightᵀ` against
/// `targets`: `x` is `[.., in]`, `weight` `[vocabulary, in]`, `targets` has one u32 per row.
///
/// # Errors
/// As [`operator::forward`].
pub(super) fn linear_cross_entropy(
    tape: &Tape,
    x: Var,
    weight: &Weight,
    targets: &Tensor,
    settings: operator::Settings,
) -> Result<Var> {
    let [x] = autocast(tape, OPERATOR, [x])?;
    tape.begin(OPERATOR)?;
    let source = x.source();
    let (x, targets) = (x.into_tensor(), targets.clone());
    let operands = named(OPERATOR, operands(&x, weight, &targets))?;
    let mean = tape.pass().mean(settings.scale);
    let settings = operator::Settings { scale: mean.scale, ..settings };
    let forward = operator::forward(&operands, &settings, mean.count);
    let operator::Output { loss, statistics } = named(OPERATOR, forward)?;
    drop(operands);
    tape.record_one(&[source], loss, || LinearCrossEntropyRule {
        x,
        targets,
        statistics,
        settings,
        weight: weight.clone(),
        factor: None,
        whole: false,
    })
}

/// The operands of a call, with the weight in the type of `x`.
fn operands(x: &Tensor, weight: &Weight, targets: &Tensor) -> tensor::Result<operator::Operands> {
    let weight = weight.values(x.dtype())?;
    Ok(operator::Operands { x: x.clone(), weight, targets: targets.clone() })
}

impl LinearCrossEntropyRule {
    /// The gradient of the input if `wanted`, and that of the weight in `matrix`.
    fn gradients(&self, factor: &Tensor, wanted: bool, matrix: Option<&Target>) -> Result<Option<Tensor>> {
        let operands = operands(&self.x, &self.weight, &self.targets)?;
        Ok(operator::backward(&operands, &self.statistics, &self.settings, factor, wanted, matrix)?)
    }
}

impl Rule for LinearCrossEntropyRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.x), Saved::new("statistics", &self.statistics.rows)]
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        let input = if wanted[0] { self.gradients(&factor, true, None)? } else { None };
        self.factor = Some(factor);
        Ok(vec![input])
    }

    /// Also computes the weight's gradient, because each piece of the scores serves both.
    fn backward(
        &mut self,
        outputs: ValueGradients,
        wanted: &[bool],
        sink: &mut dyn GradientSink,
    ) -> Result<ValueGradients> {
        let (factor, matrix) = (only(outputs)?, target(sink, &self.weight)?);
        self.whole = true;
        if !wanted[0] && matrix.is_none() {
            return Ok(vec![None]);
        }
        Ok(vec![self.gradients(&factor, wanted[0], matrix.as_ref())?])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        if let (false, Some(factor)) = (self.whole, &self.factor)
            && let Some(matrix) = target(sink, &self.weight)?
        {
            self.gradients(factor, false, Some(&matrix))?;
        }
        let weight = self.weight.clone();
        drop(self);
        ready(sink, &weight)
    }
}
