//! The low-rank adapter of a linear layer.

use std::ops::Range;
use std::sync::Arc;

use autograd::ops::{AdaptedParts, Adapter, AdapterCut, ExpertAdapter};
use collective::Axis;

use super::{Dropout, LinearCut};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::lora::{Lora, Module};
use crate::parameters::Parameters;
use crate::sharding::Sharding;

/// Makes the adapter of the linear layer `layer` in `parameters`, whose weight is `[outputs, inputs]`; `None`
/// for a layer without one. A starts like the weight of PyTorch's linear layers, B at zero. Lanes of a layer
/// that they divide by outputs share A and have parts of B; by inputs, they have parts of A and share B.
///
/// # Errors
/// As for [`Parameters::create`]; a module of which lanes do not have equal parts.
pub(super) fn create(
    parameters: &mut Parameters,
    layer: &str,
    ([outputs, inputs], cut): ([usize; 2], LinearCut<'_>),
) -> Result<Option<Adapter>> {
    let tuning = Arc::clone(parameters.tuning());
    let Some(lora) = tuning.lora() else { return Ok(None) };
    let modules = lora.modules_of(layer, outputs);
    if modules.is_empty() {
        return Ok(None);
    }
    parameters.adapters_mut().extend(lora.tensors(layer, inputs, &modules));
    let layout = Layout { modules: &modules, outputs, cut, lanes: parameters.lanes().all };
    let rows: usize = modules.iter().map(|module| module.rows.len()).sum();
    let ([a_name, b_name], init) = (Lora::names(layer), Init::uniform_fan_in(inputs));
    let (a_shape, b_shape) = ([modules.len() * lora.r, inputs], [rows, lora.r]);
    let is_divided = parameters.lanes().is_divided();
    let (a, b, adapter_cut) = match cut {
        _ if !is_divided => {
            let a = parameters.create(&a_name, a_shape, init)?;
            (a, parameters.create(&b_name, b_shape, Init::Constant(0.0))?, AdapterCut::Whole)
        }
        LinearCut::Outputs(_) => {
            let (a, share) = parameters.create_for_all_lanes(&a_name, a_shape, init)?;
            let b = layout.b(layer, Sharding::replicated(b_shape))?;
            let b = parameters.create_sharded(&b_name, b, Init::Constant(0.0))?;
            (a, b, AdapterCut::Outputs(share))
        }
        LinearCut::Inputs => {
            let a = Sharding::replicated(a_shape).divided(Axis::Tensor, 1, layout.lanes)?;
            let a = parameters.create_sharded(&a_name, a, init)?;
            let (b, share) = parameters.create_for_all_lanes(&b_name, b_shape, Init::Constant(0.0))?;
            (a, b, AdapterCut::Inputs(share))
        }
    };
    let dropout = Dropout::of_input(parameters, &format!("{layer}.lora_dropout"), lora.dropout, cut);
    let (parts, scale, dropout) = (layout.parts(), lora.scale(), dropout.site().cloned());
    Ok(Some(Adapter { a, b, parts, scale, dropout, cut: adapter_cut }))
}

/// A layer of experts: the names of the equal parts of an expert's outputs, the rows of one, and the inputs.
pub(super) struct ExpertLayer<'a> {
    /// Name of the layer.
    pub(super) layer: String,
    /// Name of the experts, before the number of one.
    pub(super) prefix: &'a str,
    /// Number of experts.
    pub(super) experts: usize,
    /// Names of the parts.
    pub(super) parts: &'a [&'static str],
    /// Rows of a part.
    pub(super) rows: usize,
    /// Inputs of the layer.
    pub(super) inputs: usize,
    /// The dimension that lanes divide.
    pub(super) cut: LinearCut<'a>,
}

/// Makes the adapters of a layer of experts, as [`create`] that of a linear layer: for each expert the same
/// parts have one.
///
/// # Errors
/// As for [`Parameters::create`]; targets that name other parts of one expert than of another.
pub(super) fn create_for_experts(
    parameters: &mut Parameters,
    of: &ExpertLayer<'_>,
) -> Result<Option<ExpertAdapter>> {
    let tuning = Arc::clone(parameters.tuning());
    let Some(lora) = tuning.lora() else { return Ok(None) };
    let ExpertLayer { layer, experts, rows, inputs, cut, .. } = of;
    let modules = lora.modules_of_experts((layer, of.prefix), *experts, (of.parts, *rows));
    if modules.is_empty() {
        return Ok(None);
    }
    let (all, each) = (of.parts.len(), modules.len() / experts);
    let part = |module: &Module| module.rows.start / rows;
    let adapted: Vec<usize> = modules.iter().take(each).map(part).collect();
    let is_alike = modules.iter().enumerate().all(|(index, module)| {
        adapted.get(index % each.max(1)).is_some_and(|own| part(module) == index / each * all + own)
    });
    if !is_alike || !modules.len().is_multiple_of(*experts) {
        let text = format!("lora.targets: all experts of {layer} need adapters of the same parts");
        return Err(NnError::Sizes(text));
    }
    parameters.adapters_mut().extend(lora.tensors(layer, *inputs, &modules));
    let ([a_name, b_name], init) = (Lora::names(layer), Init::uniform_fan_in(*inputs));
    let (a_shape, b_shape) = ([modules.len() * lora.r, *inputs], [modules.len() * rows, lora.r]);
    let (lanes, zero) = (parameters.lanes(), Init::Constant(0.0));
    let (a, b, adapter_cut) = match cut {
        _ if !lanes.is_divided() => {
            let a = parameters.create(&a_name, a_shape, init)?;
            (a, parameters.create(&b_name, b_shape, zero)?, AdapterCut::Whole)
        }
        LinearCut::Outputs(_) => {
            let (a, share) = parameters.create_for_all_lanes(&a_name, a_shape, init)?;
            let groups = vec![*rows; modules.len()];
            let b = Sharding::replicated(b_shape).divided_in_groups(Axis::Tensor, 0, lanes.all, &groups)?;
            (a, parameters.create_sharded(&b_name, b, zero)?, AdapterCut::Outputs(share))
        }
        LinearCut::Inputs => {
            let a = Sharding::replicated(a_shape).divided(Axis::Tensor, 1, lanes.all)?;
            let a = parameters.create_sharded(&a_name, a, init)?;
            let (b, share) = parameters.create_for_all_lanes(&b_name, b_shape, zero)?;
            (a, b, AdapterCut::Inputs(share))
        }
    };
    let dropout = Dropout::of_input(parameters, &format!("{layer}.lora_dropout"), lora.dropout, *cut);
    let (scale, dropout) = (lora.scale(), dropout.site().cloned());
    let parts = AdaptedParts { experts: *experts, all, adapted };
    Ok(Some(ExpertAdapter { a, b, parts, scale, dropout, cut: adapter_cut }))
}

/// The modules with adapters in the outputs of a layer.
struct Layout<'a> {
    modules: &'a [Module],
    outputs: usize,
    cut: LinearCut<'a>,
    lanes: usize,
}

impl Layout<'_> {
    /// The outputs of a lane that each module's adapter adds to.
    fn parts(&self) -> Vec<Range<usize>> {
        let lanes = match self.cut {
            LinearCut::Outputs(_) => self.lanes,
            LinearCut::Inputs => 1,
        };
        let of = |module: &Module| module.rows.start / lanes..module.rows.end / lanes;
        self.modules.iter().map(of).collect()
    }

    /// The parts of B in lanes that divide the outputs: of each module the rows that the lane has of it.
    fn b(&self, layer: &str, whole: Sharding) -> Result<Sharding> {
        let groups = match self.cut {
            LinearCut::Outputs(groups) if !groups.is_empty() => groups,
            _ => &[self.outputs],
        };
        let (mut of_modules, mut first) = (Vec::new(), 0);
        for group in groups {
            let rows = first..first + group;
            let is_part = |module: &Module| module.rows.start <= rows.start && rows.end <= module.rows.end;
            if self.modules.iter().any(is_part) {
                of_modules.push(*group);
            }
            first = rows.end;
        }
        if of_modules.iter().sum::<usize>() != whole.whole().rows() {
            let text = format!("lora.targets: lanes do not divide the modules of {layer} in equal parts");
            return Err(NnError::Sizes(text));
        }
        whole.divided_in_groups(Axis::Tensor, 0, self.lanes, &of_modules)
    }
}
