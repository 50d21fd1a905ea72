//! Joins several losses of a pass in a vector.

use device::{Category, DType, Request};
use tensor::{Tensor, ops};

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, Var};
use crate::tape::Tape;

const OPERATOR: &str = "join_losses";

/// Backward of [`join_losses`].
#[derive(Debug)]
pub struct JoinLossesRule {
    weights: Vec<f32>,
}

/// Joins scalar losses in a vector, with the first of them as the loss and the others as figures. A scalar
/// gradient is of the sum of all losses times their `weights`; else there is one for each.
///
/// # Errors
/// A loss is no f32 scalar, or memory is exhausted.
pub fn join_losses(tape: &Tape, losses: Vec<Var>, weights: &[f32]) -> Result<Var> {
    tape.begin(OPERATOR)?;
    let sources: Vec<Source> = losses.iter().map(Var::source).collect();
    let request = Request::new(Category::Activation, OPERATOR);
    let joined = named(OPERATOR, Tensor::empty(tape.device(), [losses.len()], DType::F32, request))?;
    for (index, loss) in losses.iter().enumerate() {
        let copied = joined.view(index, [1]).and_then(|slot| slot.copy_from(&loss.tensor().reshape([1])?));
        named(OPERATOR, copied)?;
    }
    tape.record_one(&sources, joined, || JoinLossesRule { weights: weights.to_vec() })
}

impl Rule for JoinLossesRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let is_scalar = factor.elements() == 1;
        let weighted = |(index, (weight, wanted)): (usize, (&f32, &bool))| -> Result<Option<Tensor>> {
            if !wanted {
                return Ok(None);
            }
            let own = Tensor::empty(factor.device(), [], DType::F32, request)?;
            own.copy_from(&factor.view(if is_scalar { 0 } else { index }, [])?)?;
            if *weight != 1.0 {
                ops::scale::in_place(&own, *weight)?;
            }
            Ok(Some(own))
        };
        self.weights.iter().zip(wanted).enumerate().map(weighted).collect()
    }
}
