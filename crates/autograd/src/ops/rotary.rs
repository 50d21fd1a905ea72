//! Rotary position embeddings.

use tensor::Tensor;
use tensor::ops;
use tensor::ops::rotary::{Angles, Rotation};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// Table of angles, document starts, and options of a rotary embedding.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// Cosines and sines, `[context, rotated columns of a head]` f32.
    pub table: Tensor,
    /// Columns per head; `None` if equal to the table's columns.
    pub head_width: Option<usize>,
    /// Position at which each token's document begins, `[batch, time]` u32; `None` means 0.
    pub documents: Option<Tensor>,
    /// Whether neighbouring columns rotate together, instead of columns of both halves.
    pub interleaved: bool,
    /// Whether to measure the largest magnitude of the gradient on a GPU, because FP8 matmuls read it.
    pub measures: bool,
}

impl Rotary {
    pub(super) fn angles(&self) -> Angles<'_> {
        let Rotary { table, head_width, documents, interleaved, .. } = self;
        Angles { table, head_width: *head_width, documents: documents.as_ref(), interleaved: *interleaved }
    }
}

/// Backward of [`rotary`].
#[derive(Debug)]
pub struct RotaryRule {
    rotary: Rotary,
    heads: usize,
}

/// Rotates the first `heads` heads of `x_blc [batch, time, columns]` to their positions, in place if no other
/// tensor shares its storage.
pub fn rotary(tape: &Tape, x_blc: Var, heads: usize, rotary: &Rotary) -> Result<Var> {
    map(tape, [x_blc], |_, [x_blc]| {
        let [x_blc] = autocast(tape, "rotary", [x_blc])?;
        tape.begin("rotary")?;
        let source = x_blc.source();
        let rotated_blc =
            ops::rotary::rotate(x_blc.into_tensor(), heads, rotary.angles(), Rotation::Forward, false);
        let rotated_blc = named("rotary", rotated_blc)?;
        tape.record_one(&[source], rotated_blc, || RotaryRule { rotary: rotary.clone(), heads })
    })
}

impl Rule for RotaryRule {
    fn operator(&self) -> &'static str {
        "rotary"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let Rotary { measures, .. } = self.rotary;
        Ok(vec![Some(ops::rotary::rotate(
            gradient,
            self.heads,
            self.rotary.angles(),
            Rotation::Backward,
            measures,
        )?)])
    }
}
