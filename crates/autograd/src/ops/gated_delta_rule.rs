//! The gated delta rule.

use device::{Category, Device, Request};
use tensor::ops;
use tensor::ops::gated_delta_rule::{DeltaHeads, DeltaSettings, Gradients, Operands};
use tensor::ops::rearrange::{concatenate, repeat, slice};
use tensor::{DType, Tensor};

use super::piece_states::{self, PieceOrder, Recurrence};
use super::{autocast, named};
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
    /// The state that entered a piece; dropped by backward.
    entering: Option<Tensor>,
}

/// Computes the rule over `qkv [batch, time, packed columns]`, with decays and rates in f32. The state is
/// empty at the beginning of every document of the pass.
pub fn gated_delta_rule(tape: &Tape, operands: [Var; 3], settings: DeltaSettings) -> Result<Var> {
    if let Some(order) = PieceOrder::new(tape, OPERATOR, &operands[0])? {
        let [qkv_blc, decay, rate] = operands;
        let [qkv_blc] = autocast(tape, OPERATOR, [qkv_blc])?;
        return piece_states::scan(tape, &order, [qkv_blc, decay, rate], &settings);
    }
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
            entering: None,
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

impl Recurrence<3> for DeltaSettings {
    /// The rule is linear in its state, so it computes the map, too: from the identity, with zeros for
    /// values. Both are further columns of the values and of the state.
    fn map(&self, inputs: &[Tensor; 3], documents: Option<&Tensor>) -> Result<[Tensor; 2]> {
        let [qkv_blc, decay, rate] = inputs;
        let DeltaHeads { key, value, width, value_width } = self.heads;
        let [batch, time] = [qkv_blc.shape().dims()[0], qkv_blc.shape().dims()[1]];
        let wide = DeltaHeads { value_width: value_width + width, ..self.heads };
        let request = Request::new(Category::Activation, OPERATOR);
        let computed = || {
            let device = qkv_blc.device();
            let keys = slice(qkv_blc, 2, 0, 2 * key * width)?;
            let values = slice(qkv_blc, 2, 2 * key * width, value * value_width)?;
            let values = values.reshape([batch, time, value, value_width])?;
            let zeros = Tensor::zeros(device, [batch, time, value, width], qkv_blc.dtype(), request)?;
            let values = concatenate(&[&values, &zeros], 3)?.reshape([batch, time, wide.output_columns()])?;
            drop(zeros);
            let qkv_blc = concatenate(&[&keys, &values], 2)?;
            drop((keys, values));
            let first = identities(device, [batch, value, width, value_width], request)?;
            let operands = Operands { qkv: &qkv_blc, decay, rate, documents, state: Some(&first) };
            let settings = DeltaSettings { heads: wide, ..*self };
            let last = ops::gated_delta_rule::forward(&operands, settings, true)?.state;
            let last = last.unwrap_or(first);
            let map = slice(&last, 3, value_width, width)?.reshape([batch * value, width, width])?;
            Ok([map, slice(&last, 3, 0, value_width)?])
        };
        named(OPERATOR, computed())
    }

    fn forward(&self, tape: &Tape, inputs: [Var; 3], entering: Tensor) -> Result<Vec<Var>> {
        tape.begin(OPERATOR)?;
        let documents = tape.pass().documents.clone();
        let sources = inputs.each_ref().map(Var::source);
        let operands = inputs.map(Var::into_tensor);
        let borrowed = Operands { state: Some(&entering), ..borrow(&operands, documents.as_ref()) };
        let forward = ops::gated_delta_rule::forward(&borrowed, *self, false);
        let outputs = vec![named(OPERATOR, forward)?.output, entering.clone()];
        tape.record(&sources, outputs, || GatedDeltaRule {
            operands: Some(operands),
            documents,
            settings: *self,
            entering: Some(entering),
        })
    }

    fn retreat(
        &self,
        dy: &Tensor,
        inputs: &[Tensor; 3],
        documents: Option<&Tensor>,
        entering: &Tensor,
    ) -> Result<Tensor> {
        let operands = Operands { state: Some(entering), ..borrow(inputs, documents) };
        let gradients = ops::gated_delta_rule::backward(dy, None, &operands, *self)?;
        gradients.state.ok_or(AutogradError::NotRecorded)
    }
}

/// Returns states `[batch, heads, width, value_width + width]` of zeros, and then the identity.
fn identities(
    device: &Device,
    [batch, heads, width, value_width]: [usize; 4],
    request: Request,
) -> tensor::Result<Tensor> {
    let ones = Tensor::empty(device, [width, 1], DType::F32, request)?;
    ops::fill::constant(&ones, 1.0)?;
    let zeros = |columns| Tensor::zeros(device, [width, columns], DType::F32, request);
    // Rows of one column more than the identity, so that ones are along its diagonal.
    let shifted = concatenate(&[&ones, &zeros(width)?], 1)?;
    let identity = shifted.view(0, [width, width])?;
    let state = concatenate(&[&zeros(value_width)?, &identity], 1)?;
    let columns = value_width + width;
    repeat(&state.reshape([1, 1, width, columns])?, [batch, heads, width, columns].into())
}

impl Rule for GatedDeltaRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let names = ["qkv", "decay", "rate"].into_iter();
        let saved = self.operands.iter().flat_map(|operands| names.clone().zip(operands));
        let saved = saved.chain(self.entering.iter().map(|entering| ("entering", entering)));
        saved.map(|(name, tensor)| Saved::new(name, tensor)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let mut outputs = outputs.into_iter();
        let dy_blc = outputs.next().flatten().ok_or(AutogradError::NotRecorded)?;
        let leaving = outputs.next().flatten();
        let Some(operands) = self.operands.take() else { return Ok(vec![None; 3]) };
        let entering = self.entering.take();
        let borrowed = borrow(&operands, self.documents.as_ref());
        let borrowed = Operands { state: entering.as_ref(), ..borrowed };
        let backward = ops::gated_delta_rule::backward(&dy_blc, leaving.as_ref(), &borrowed, self.settings);
        let Gradients { qkv, decay, rate, .. } = backward?;
        Ok(vec![Some(qkv), Some(decay), Some(rate)])
    }
}
