//! The low-rank adapter of a linear layer.

use std::ops::Range;
use std::sync::Arc;

use autograd::Weight;
use autograd::ops::{AdaptedParts, Adapter, ExpertAdapter, PartialSums};
use collective::Axis;

use super::Dropout;
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::lora::{Lora, Module};
use crate::lora_terms::Term;
use crate::parameters::Parameters;
use crate::placements::ParallelStyle;
use crate::sharding::Sharding;

/// Makes the adapter of the linear layer `layer` in `parameters`, whose weight is `[outputs, inputs]`; `None`
/// for a layer without one. A starts like the weight of PyTorch's linear layers, B at zero. Shards of a
/// column-parallel layer share A and have parts of B; those of a row-parallel one have parts of A and share
/// B.
///
/// # Errors
/// As for [`Parameters::create`]; modules with different ranks; one of which shards do not have equal parts.
pub(super) fn create(
    parameters: &mut Parameters,
    layer: &str,
    ([outputs, inputs], style): ([usize; 2], Option<&ParallelStyle>),
) -> Result<Option<Adapter>> {
    let tuning = Arc::clone(parameters.tuning());
    let Some(lora) = tuning.lora() else { return Ok(None) };
    let modules = lora.modules_of(layer, outputs);
    if modules.is_empty() {
        return Ok(None);
    }
    let Term { r, scale } = lora.term(&modules)?;
    parameters.adapters_mut().extend(Lora::tensors(layer, [r, inputs], &modules));
    let layout = Layout { modules: &modules, outputs, style, shards: parameters.shards().all };
    let rows: usize = modules.iter().map(|module| module.rows.len()).sum();
    let a_shape = [modules.len() * r, inputs];
    let b_shape = [rows, r];
    let of_b = match style {
        Some(ParallelStyle::Column(_)) => Some(layout.b(layer, Sharding::replicated(b_shape))?),
        _ => None,
    };
    let [a, b] = matrices(parameters, layer, style, ([a_shape, b_shape], of_b))?;
    let module_rows: Vec<_> = modules.iter().map(|module| module.rows.len()).collect();
    stack_modules(parameters, layer, r, &module_rows);
    let dropout = Dropout::of_layer_input(parameters, &format!("{layer}.lora_dropout"), lora.dropout, style);
    let parts = layout.parts();
    let dropout = dropout.site().cloned();
    Ok(Some(Adapter { a, b, parts, scale, dropout, sums: sums(style) }))
}

/// The results of an adapted layer that are partial sums over shards.
fn sums(style: Option<&ParallelStyle>) -> PartialSums {
    PartialSums {
        output: style == Some(&ParallelStyle::Row),
        input_gradient: matches!(style, Some(ParallelStyle::Column(_))),
    }
}

/// Makes A and B of a layer, of shapes `whole`; `of_b` is the sharding of B in a column-parallel layer.
fn matrices(
    parameters: &mut Parameters,
    layer: &str,
    style: Option<&ParallelStyle>,
    ([a, b], of_b): ([[usize; 2]; 2], Option<Sharding>),
) -> Result<[Weight; 2]> {
    let [a_name, b_name] = Lora::names(layer);
    let init = Init::uniform_fan_in(a[1]);
    let zero = Init::Constant(0.0);
    Ok(match (style, of_b) {
        (Some(ParallelStyle::Row), _) => {
            let sharding = Sharding::replicated(a).divided(Axis::Tensor, 1, parameters.shards().all)?;
            let a = parameters.create_sharded(&a_name, sharding, init)?;
            [a, parameters.create_copied(&b_name, b, zero)?]
        }
        (Some(ParallelStyle::Column(_)), Some(sharding)) => {
            let a = parameters.create_copied(&a_name, a, init)?;
            [a, parameters.create_sharded(&b_name, sharding, zero)?]
        }
        _ => [parameters.create(&a_name, a, init)?, parameters.create(&b_name, b, zero)?],
    })
}

/// Records that A and B of a layer stack the matrices of modules with these numbers of rows.
pub(super) fn stack_modules(parameters: &mut Parameters, layer: &str, r: usize, rows: &[usize]) {
    let [a, b] = Lora::names(layer);
    parameters.stack(&a, &vec![r; rows.len()]);
    parameters.stack(&b, rows);
}

/// A layer of experts. The outputs of each expert consist of equal parts.
pub(super) struct ExpertLayer<'a> {
    /// Name of the layer.
    pub(super) layer: String,
    /// Prefix of the experts' names, followed by an expert's number.
    pub(super) prefix: &'a str,
    /// Number of experts.
    pub(super) experts: usize,
    /// Names of the parts of an expert's outputs.
    pub(super) parts: &'a [&'static str],
    /// Number of rows of a part.
    pub(super) rows: usize,
    /// Number of inputs of the layer.
    pub(super) inputs: usize,
    /// How the layer is divided into shards.
    pub(super) style: Option<&'a ParallelStyle>,
}

/// Creates the adapters of a layer of experts, like [`create`] for a linear layer. The same parts of every
/// expert get an adapter.
///
/// # Errors
/// Errors of [`Parameters::create`], or the targets match different parts of different experts.
pub(super) fn create_for_experts(
    parameters: &mut Parameters,
    expert_layer: &ExpertLayer<'_>,
) -> Result<Option<ExpertAdapter>> {
    let tuning = Arc::clone(parameters.tuning());
    let Some(lora) = tuning.lora() else { return Ok(None) };
    let ExpertLayer { layer, experts, rows, inputs, style, .. } = expert_layer;
    let modules =
        lora.modules_of_experts((layer, expert_layer.prefix), *experts, (expert_layer.parts, *rows));
    if modules.is_empty() {
        return Ok(None);
    }
    let all = expert_layer.parts.len();
    let each = modules.len() / experts;
    let part = |module: &Module| module.rows.start / rows;
    let adapted: Vec<usize> = modules.iter().take(each).map(part).collect();
    let is_alike = modules.iter().enumerate().all(|(index, module)| {
        adapted.get(index % each.max(1)).is_some_and(|own| part(module) == index / each * all + own)
    });
    if !is_alike || !modules.len().is_multiple_of(*experts) {
        let text = format!("lora.targets: all experts of {layer} need adapters of the same parts");
        return Err(NnError::Sizes(text));
    }
    let Term { r, scale } = lora.term(&modules)?;
    parameters.adapters_mut().extend(Lora::tensors(layer, [r, *inputs], &modules));
    let a_shape = [modules.len() * r, *inputs];
    let b_shape = [modules.len() * rows, r];
    let of_b = match style {
        Some(ParallelStyle::Column(_)) => {
            let groups = vec![*rows; modules.len()];
            let shards = parameters.shards().all;
            Some(Sharding::replicated(b_shape).divided_in_groups(Axis::Tensor, 0, shards, &groups)?)
        }
        _ => None,
    };
    let [a, b] = matrices(parameters, layer, *style, ([a_shape, b_shape], of_b))?;
    stack_modules(parameters, layer, r, &vec![*rows; modules.len()]);
    let dropout = Dropout::of_layer_input(parameters, &format!("{layer}.lora_dropout"), lora.dropout, *style);
    let dropout = dropout.site().cloned();
    let parts = AdaptedParts { experts: *experts, all, adapted };
    Ok(Some(ExpertAdapter { a, b, parts, scale, dropout }))
}

/// The modules with adapters in the outputs of a layer.
struct Layout<'a> {
    modules: &'a [Module],
    outputs: usize,
    style: Option<&'a ParallelStyle>,
    shards: usize,
}

impl Layout<'_> {
    /// The outputs of a shard that each module's adapter adds to.
    fn parts(&self) -> Vec<Range<usize>> {
        let shards = match self.style {
            Some(ParallelStyle::Column(_)) => self.shards,
            _ => 1,
        };
        let rows = |module: &Module| module.rows.start / shards..module.rows.end / shards;
        self.modules.iter().map(rows).collect()
    }

    /// Returns the sharding of B along the outputs: a shard has its rows of each adapted module.
    fn b(&self, layer: &str, whole: Sharding) -> Result<Sharding> {
        let groups = match self.style {
            Some(ParallelStyle::Column(groups)) if !groups.is_empty() => groups,
            _ => &vec![self.outputs],
        };
        let mut of_modules = Vec::new();
        let mut first = 0;
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
        whole.divided_in_groups(Axis::Tensor, 0, self.shards, &of_modules)
    }
}
