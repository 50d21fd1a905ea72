//! Rows of a variable, by index.

use device::{Category, Request};
use tensor::ops::{GradientTarget, embedding};
use tensor::{Shape, Tensor};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::tape::Tape;

/// Backward of [`gather`].
#[derive(Debug)]
pub struct GatherRule {
    indices: Tensor,
    /// The table's shape.
    shape: Shape,
}

/// Looks up row `indices[i, j]` of `table [rows, width]` for every u32 index of `indices [.., ..]`: `[.., ..,
/// width]`. Gradients of a repeated row are summed in the order of the indices.
pub fn gather(tape: &Tape, table: Var, indices: &Tensor) -> Result<Var> {
    let [table] = autocast(tape, "gather", [table])?;
    tape.begin("gather")?;
    let output = named("gather", embedding::forward(indices, table.tensor(), None))?;
    let shape = table.tensor().shape();
    tape.record_one(&[table.source()], output, || GatherRule { indices: indices.clone(), shape })
}

impl Rule for GatherRule {
    fn operator(&self) -> &'static str {
        "gather"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("indices", &self.indices)]
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let request = Request::new(Category::ActivationGradient, "gather.backward");
        let tensor = Tensor::empty(gradient.device(), self.shape, gradient.dtype(), request)?;
        let target = GradientTarget { tensor, accumulate: false };
        embedding::backward_weight(&gradient, &self.indices, &target, None)?;
        Ok(vec![Some(target.tensor)])
    }
}
