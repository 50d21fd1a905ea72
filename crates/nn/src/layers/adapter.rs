//! The low-rank adapter of a linear layer.

use std::ops::Range;
use std::sync::Arc;

use autograd::ops::{Adapter, Dropout};

use crate::error::Result;
use crate::init::Init;
use crate::lora::Lora;
use crate::parameters::Parameters;

/// Makes the adapter of the linear layer `layer` in `parameters`, whose weight is `[outputs, inputs]`; `None`
/// for a layer without one. A starts like the weight of PyTorch's linear layers, B at zero.
///
/// # Errors
/// As for [`Parameters::create`].
pub(super) fn create(
    parameters: &mut Parameters,
    layer: &str,
    [outputs, inputs]: [usize; 2],
) -> Result<Option<Adapter>> {
    let tuning = Arc::clone(parameters.tuning());
    let Some(lora) = tuning.lora() else { return Ok(None) };
    let modules = lora.modules_of(layer, outputs);
    if modules.is_empty() {
        return Ok(None);
    }
    parameters.adapters_mut().extend(lora.tensors(layer, inputs, &modules));
    let parts: Vec<_> = modules.into_iter().map(|module| module.rows).collect();
    let ([a, b], rows) = (Lora::names(layer), parts.iter().map(Range::len).sum::<usize>());
    let a = parameters.create(&a, [parts.len() * lora.r, inputs], Init::uniform_fan_in(inputs))?;
    let b = parameters.create(&b, [rows, lora.r], Init::Constant(0.0))?;
    let site = format!("{layer}.lora_dropout");
    let dropout = (lora.dropout > 0.0).then(|| Dropout::new(parameters.seed(), &site, lora.dropout));
    Ok(Some(Adapter { a, b, parts, scale: lora.scale(), dropout }))
}
