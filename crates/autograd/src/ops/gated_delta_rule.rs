//! The gated delta rule.

use tensor::Tensor;
use tensor::ops;
use tensor::ops::gated_delta_rule::{DeltaSettings, Gradients, Operands};

use super::{autocast, named, only};
use crate::error::{AutogradError, Result};
use crate::pass::CachedPass;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

const OPERATOR: &str = "gated_delta_rule";

/// Backward of [`gated_delta_rule`].
#[derive(Debug)]
pub struct GatedDeltaRule {
    /// Queries, keys and values; decays; rates. Dropped by backward.
    operands: Option<[Tensor; 3]>,
    documents: Option<Tensor>,
    settings: DeltaSettings,
}

/// Computes the rule over `qkv [batch, time, packed columns]`, with decays and rates in f32. The state is
/// empty at the beginning of every document of the pass.
pub fn gated_delta_rule(tape: &Tape, operands: [Var; 3], settings: DeltaSettings) -> Result<Var> {
    map(tape, operands, |_, [qkv_blc, decay, rate]| {
        let [qkv_blc] = autocast(tape, OPERATOR, [qkv_blc])?;
        tape.begin(OPERATOR)?;
        let documents = tape.pass().documents.clone();
        let sources = [qkv_blc.source(), decay.source(), rate.source()];
        let operands = [qkv_blc, decay, rate].map(Var::into_tensor);
        if let Some(pass) = &tape.pass().cache {
            let output_blc = forward_cached(pass, documents.as_ref(), &operands, settings)?;
            return Ok(tape.constant(output_blc));
        }
        let borrowed = borrow(&operands, documents.as_ref());
        let forward = ops::gated_delta_rule::forward(&borrowed, settings, false);
        let output_blc = named(OPERATOR, forward)?.output;
        tape.record_one(&sources, output_blc, || GatedDeltaRule {
            operands: Some(operands),
            documents,
            settings,
        })
    })
}

/// Computes a whole sequence that fills a slot of the pass's states, or the next token of every sequence.
fn forward_cached(
    pass: &CachedPass,
    documents: Option<&Tensor>,
    operands: &[Tensor; 3],
    settings: DeltaSettings,
) -> Result<Tensor> {
    let states = pass.next_state().ok_or(AutogradError::NoCache)?;
    let Some(slot) = pass.slot() else {
        let documents = documents.ok_or(AutogradError::NoCache)?;
        let operands = Operands { state: Some(states), ..borrow(operands, Some(documents)) };
        return named(OPERATOR, ops::gated_delta_rule::step(&operands, settings));
    };
    let fill = || {
        let output = ops::gated_delta_rule::forward(&borrow(operands, None), settings, true)?;
        if let Some(state) = &output.state {
            states.view(slot * state.elements(), state.shape())?.copy_from(state)?;
        }
        Ok(output.output)
    };
    named(OPERATOR, fill())
}

fn borrow<'a>([qkv, decay, rate]: &'a [Tensor; 3], documents: Option<&'a Tensor>) -> Operands<'a> {
    Operands { qkv, decay, rate, documents, state: None }
}

impl Rule for GatedDeltaRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let names = ["qkv", "decay", "rate"].into_iter();
        let saved = self.operands.iter().flat_map(|operands| names.clone().zip(operands));
        saved.map(|(name, tensor)| Saved::new(name, tensor)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let dy_blc = only(outputs)?;
        let Some(operands) = self.operands.take() else { return Ok(vec![None; 3]) };
        let borrowed = borrow(&operands, self.documents.as_ref());
        let backward = ops::gated_delta_rule::backward(&dy_blc, None, &borrowed, self.settings);
        let Gradients { qkv, decay, rate, .. } = backward?;
        Ok(vec![Some(qkv), Some(decay), Some(rate)])
    }
}
