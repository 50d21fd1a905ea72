//! The low-rank adapter of a whole layer on rows that are in shards.

use std::sync::Arc;

use autograd::{Tape, Var, Weight, ops};

use super::{Dropout, Multiplier, adapter};
use crate::error::Result;
use crate::init::Init;
use crate::lora::Lora;
use crate::lora_terms::Term;
use crate::parameters::Parameters;

/// `scale · B · A · dropout(x)`.
#[derive(Debug)]
pub(super) struct RowAdapter {
    matrices: [Weight; 2],
    scale: Multiplier,
    dropout: Dropout,
}

impl RowAdapter {
    /// Makes the adapter of the layer `layer`; `None` for one without.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub(super) fn new(
        parameters: &mut Parameters,
        layer: &str,
        [inputs, outputs]: [usize; 2],
    ) -> Result<Option<Self>> {
        let tuning = Arc::clone(parameters.tuning());
        let Some(lora) = tuning.lora() else { return Ok(None) };
        let modules = lora.modules_of(layer, outputs);
        if modules.is_empty() {
            return Ok(None);
        }
        let Term { r, scale } = lora.term(&modules)?;
        parameters.adapters_mut().extend(Lora::tensors(layer, [r, inputs], &modules));
        let [a_name, b_name] = Lora::names(layer);
        let a = parameters.create(&a_name, [r, inputs], Init::uniform_fan_in(inputs))?;
        let b = parameters.create(&b_name, [outputs, r], Init::Constant(0.0))?;
        adapter::stack_modules(parameters, layer, r, &[outputs]);
        let matrices = [a, b].map(|weight| parameters.over_rows(weight));
        let dropout = Dropout::new(parameters, &format!("{layer}.lora_dropout"), lora.dropout);
        Ok(Some(RowAdapter { matrices, scale: Multiplier::new(scale.into()), dropout }))
    }

    /// The term that is added to the layer's output.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    pub(super) fn forward(&self, tape: &Tape, x_ti: Var) -> Result<Var> {
        let [a, b] = &self.matrices;
        let low_tr = ops::row_linear(tape, self.dropout.forward(tape, x_ti)?, a)?;
        self.scale.forward(tape, ops::row_linear(tape, low_tr, b)?)
    }
}
