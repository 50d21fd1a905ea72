//! A linear layer before layers that lanes divide: all lanes share its weight, and rows are divided.

use autograd::{Tape, Var, Weight, ops};
use tensor::ops::Activation;

use super::linear::short;
use super::{Dropout, Linear, Multiplier, within};
use crate::error::Result;
use crate::init::Init;
use crate::lora::Lora;
use crate::parameters::Parameters;
use crate::sharding::Sharding;

/// `y = x · Wᵀ` with weight `[outputs, inputs]`.
#[derive(Debug)]
pub(super) enum RowLinear {
    /// Layers are not divided.
    Whole(Linear),
    /// Rows are divided between lanes.
    Divided { name: String, weight: Weight, adapter: Option<RowAdapter> },
}

/// The low-rank adapter of a layer whose rows are divided.
#[derive(Debug)]
pub(super) struct RowAdapter {
    matrices: [Weight; 2],
    scale: Multiplier,
    dropout: Dropout,
}

impl RowLinear {
    /// Registers `{name}.weight`, and an adapter if the layer has one. If rows are divided, it multiplies in
    /// the compute type.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub(super) fn new(
        parameters: &mut Parameters,
        name: &str,
        [inputs, outputs]: [usize; 2],
        init: Init,
    ) -> Result<Self> {
        if !parameters.lanes().is_divided() {
            let layer = Linear::without_bias(parameters, name, inputs, outputs, init, Activation::None)?;
            return Ok(RowLinear::Whole(layer));
        }
        let mut create = |name: &str, shape: [usize; 2], init: Init| {
            let weight = parameters.create_matrix(name, Sharding::replicated(shape), init)?;
            Ok::<_, crate::NnError>(parameters.over_rows(weight))
        };
        let weight = create(&format!("{name}.weight"), [outputs, inputs], init)?;
        let tuning = std::sync::Arc::clone(parameters.tuning());
        let adapter = match tuning.lora() {
            Some(lora) => RowAdapter::new(parameters, name, [inputs, outputs], lora)?,
            None => None,
        };
        Ok(RowLinear::Divided { name: name.to_owned(), weight, adapter })
    }

    /// Maps `[.., inputs]` to `[.., outputs]`.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    pub(super) fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let (name, weight, adapter) = match self {
            RowLinear::Whole(layer) => return layer.forward(tape, x),
            RowLinear::Divided { name, weight, adapter } => (name, weight, adapter),
        };
        within(tape, short(name), || match adapter {
            None => Ok(ops::row_linear(tape, x, weight)?),
            Some(adapter) => {
                let y = ops::row_linear(tape, x.clone(), weight)?;
                Ok(ops::add(tape, y, adapter.forward(tape, x)?)?)
            }
        })
    }
}

impl RowAdapter {
    fn new(
        parameters: &mut Parameters,
        layer: &str,
        [inputs, outputs]: [usize; 2],
        lora: &Lora,
    ) -> Result<Option<Self>> {
        let modules = lora.modules_of(layer, outputs);
        if modules.is_empty() {
            return Ok(None);
        }
        parameters.adapters_mut().extend(lora.tensors(layer, inputs, &modules));
        let [a_name, b_name] = Lora::names(layer);
        let a = parameters.create(&a_name, [lora.r, inputs], Init::uniform_fan_in(inputs))?;
        let b = parameters.create(&b_name, [outputs, lora.r], Init::Constant(0.0))?;
        let matrices = [a, b].map(|weight| parameters.over_rows(weight));
        let dropout = Dropout::new(parameters, &format!("{layer}.lora_dropout"), lora.dropout);
        Ok(Some(RowAdapter { matrices, scale: Multiplier::new(lora.scale().into()), dropout }))
    }

    /// The term that is added to the layer's output.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let [a, b] = &self.matrices;
        let low = ops::row_linear(tape, self.dropout.forward(tape, x)?, a)?;
        self.scale.forward(tape, ops::row_linear(tape, low, b)?)
    }
}
