//! Packs queries, keys and values of attention with latents into one array.

use tensor::ops;
use tensor::ops::latent_qkv::LatentHeads;

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

const OPERATOR: &str = "latent_qkv";

/// Backward of [`latent_qkv`].
#[derive(Debug)]
pub struct LatentQkvRule {
    heads: LatentHeads,
}

/// Packs queries, keys and values, and the rotated columns that all keys share, as attention expects them.
pub fn latent_qkv(tape: &Tape, operands: [Var; 3], heads: LatentHeads) -> Result<Var> {
    map(tape, operands, |_, operands| {
        let operands = autocast(tape, OPERATOR, operands)?;
        tape.begin(OPERATOR)?;
        let output = named(OPERATOR, ops::latent_qkv::forward(operands.each_ref().map(Var::tensor), heads))?;
        let sources = operands.each_ref().map(Var::source);
        drop(operands);
        tape.record_one(&sources, output, || LatentQkvRule { heads })
    })
}

impl Rule for LatentQkvRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradients = ops::latent_qkv::backward(&only(outputs)?, self.heads)?;
        Ok(gradients.into_iter().map(Some).collect())
    }
}
