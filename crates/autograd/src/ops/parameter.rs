//! A parameter as a variable, for models composed of general operators.

use collective::Axis;
use tensor::{Tensor, ops};

use super::{autocast, named, only};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{BlockIndex, Placement, Var};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Backward of [`parameter`]: the weight's gradient is the variable's.
#[derive(Debug)]
pub struct ParameterRule {
    weight: Weight,
    gradient: Option<Tensor>,
}

/// Returns the values of `weight` as a variable. Each piece of sequences gets a copy, because the pieces'
/// gradients are summed in a fixed tree.
///
/// # Errors
/// The weight's values are released.
pub fn parameter(tape: &Tape, weight: &Weight) -> Result<Var> {
    match (tape.pieces(), tape.block()) {
        (Some(pieces), None) => {
            let block = |piece| BlockIndex { shard: 0, piece: Some(piece) };
            let copy = |piece| tape.within_block(block(piece), || parameter_block(tape, weight));
            let copies = (0..pieces.here.len()).map(copy).collect::<Result<Vec<_>>>()?;
            let all = Var::from_blocks(copies).ok_or(AutogradError::NotRecorded)?;
            Ok(all.with_placement(Axis::Context, Placement::Copied))
        }
        _ => parameter_block(tape, weight),
    }
}

fn parameter_block(tape: &Tape, weight: &Weight) -> Result<Var> {
    tape.begin("parameter")?;
    let rule = || ParameterRule { weight: weight.clone(), gradient: None };
    let values = tape.record_one(&[], named("parameter", weight.stored())?, rule)?;
    let [values] = autocast(tape, "parameter", [values])?;
    Ok(values)
}

impl Rule for ParameterRule {
    fn operator(&self) -> &'static str {
        "parameter"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        self.gradient = Some(only(outputs)?);
        Ok(Vec::new())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some(gradient) = self.gradient else { return Ok(()) };
        let Some(target) = target(sink, &self.weight)? else { return Ok(()) };
        let own = if gradient.dtype() == target.tensor.dtype() {
            gradient
        } else {
            let request = device::Request::new(device::Category::ActivationGradient, "parameter.backward");
            let shape = gradient.shape();
            let cast = Tensor::empty(gradient.device(), shape, target.tensor.dtype(), request)?;
            ops::cast::into(&gradient, &cast)?;
            cast
        };
        match target.accumulate {
            true => ops::add::into(&target.tensor, &own)?,
            false => target.tensor.copy_from(&own)?,
        }
        ready(sink, &self.weight)
    }
}
