//! Linear layers whose matmuls have FP8 operands.

use std::sync::Arc;

use autograd::ops::{Fp8Recipe, Fp8Weight, NormSettings};
use autograd::{Weight, WeightHandle};
use device::DType;
use glob::Pattern;
use tensor::ops::fp8_linear::MULTIPLE;

use crate::error::{NnError, Result};

/// The role of a linear layer in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearRole {
    /// A layer inside the model.
    Inner,
    /// The layer that computes the model's output.
    Head,
}

/// Selects the linear layers that multiply in FP8, and how their operands are scaled.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8Layers {
    recipe: Fp8Recipe,
    gradients: DType,
    /// Globs of layer names; if empty, all layers except the model's first and its head.
    layers: Vec<Pattern>,
}

impl Fp8Layers {
    /// Selects the layers that match one of the globs `layers`; without globs, all except the model's first
    /// layer and its head. Gradients are cast to `gradients`, E4M3 or E5M2.
    ///
    /// # Errors
    /// A description of an invalid glob.
    pub fn new(recipe: Fp8Recipe, gradients: DType, layers: &[String]) -> std::result::Result<Self, String> {
        let pattern = |glob: &String| {
            Pattern::new(glob).map_err(|error| format!("\"{glob}\" is no glob: {}", error.msg))
        };
        Ok(Fp8Layers {
            recipe,
            gradients,
            layers: layers.iter().map(pattern).collect::<std::result::Result<_, _>>()?,
        })
    }

    /// Granularity of the scales.
    #[must_use]
    pub fn recipe(&self) -> Fp8Recipe {
        self.recipe
    }

    /// FP8 format of gradients.
    #[must_use]
    pub fn gradients(&self) -> DType {
        self.gradients
    }

    /// Returns whether the layer `name` is selected. `is_first`: the layer is the model's first linear layer.
    #[must_use]
    pub fn selects(&self, name: &str, role: LinearRole, is_first: bool) -> bool {
        match self.layers.is_empty() {
            true => role == LinearRole::Inner && !is_first,
            false => self.layers.iter().any(|pattern| pattern.matches(name)),
        }
    }

    /// Checks that every glob matches one of `names`, the names of all linear layers. Without globs, checks
    /// that the model has an eligible layer.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn check<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> std::result::Result<(), String> {
        if self.layers.is_empty() && names.clone().count() < 2 {
            return Err(
                "the model has no linear layer but the first or its head, so none multiplies in FP8".into()
            );
        }
        let idle = |pattern: &&Pattern| !names.clone().any(|name| pattern.matches(name));
        let Some(pattern) = self.layers.iter().find(idle) else { return Ok(()) };
        let text = pattern.as_str();
        let near = keys::nearest(&text.replace(['*', '?'], ""), names.clone());
        let hint = near.or(names.clone().next()).unwrap_or("none");
        Err(format!("\"{text}\" matches no linear layer, such as {hint}"))
    }
}

/// FP8 copies of the weights of a stage's linear layers.
#[derive(Debug, Default)]
pub struct Fp8Weights {
    chosen: Option<Arc<Fp8Layers>>,
    in_first_stage: bool,
    layers: Vec<String>,
    copies: Vec<Fp8Weight>,
}

impl Fp8Weights {
    /// Creates an empty list for the layers selected by `chosen`; without it, no layer multiplies in FP8.
    /// `in_first_stage`: the stage is the model's first.
    #[must_use]
    pub fn new(chosen: Option<Arc<Fp8Layers>>, in_first_stage: bool) -> Self {
        Fp8Weights { chosen, in_first_stage, ..Self::default() }
    }

    /// Creates the FP8 copies for the next linear layer, `layer`, or for its next shard. Returns `None` if
    /// the layer multiplies in the compute dtype.
    ///
    /// # Errors
    /// Memory is exhausted, or FP8 does not support the sizes.
    pub(crate) fn create(
        &mut self,
        (layer, is_sharded): (&str, bool),
        weight: &Weight,
        role: LinearRole,
    ) -> Result<Option<Fp8Weight>> {
        self.create_with((layer, is_sharded), weight, weight.shape().rows(), role)
    }

    /// Does the same as [`Fp8Weights::create`] for experts' weights with `outputs` outputs per expert.
    ///
    /// # Errors
    /// Errors of [`Fp8Weights::create`].
    pub(crate) fn create_for_experts(
        &mut self,
        layer: (&str, bool),
        weight: &Weight,
        outputs: usize,
    ) -> Result<Option<Fp8Weight>> {
        self.create_with(layer, weight, outputs, LinearRole::Inner)
    }

    fn create_with(
        &mut self,
        (layer, is_sharded): (&str, bool),
        weight: &Weight,
        outputs: usize,
        role: LinearRole,
    ) -> Result<Option<Fp8Weight>> {
        let is_first = self.in_first_stage && self.layers.first().is_none_or(|first| first == layer);
        if !is_sharded || !self.layers.iter().rev().any(|known| known == layer) {
            self.layers.push(layer.to_owned());
        }
        let Some(fp8) = self.chosen.as_ref().filter(|fp8| fp8.selects(layer, role, is_first)) else {
            return Ok(None);
        };
        let inputs = weight.shape().columns();
        if ![outputs, inputs].iter().all(|size| size.is_multiple_of(MULTIPLE)) {
            let part = if is_sharded { "a lane of " } else { "" };
            let text = format!(
                "precision.fp8_layers: {part}linear layer {layer} has {inputs} inputs and {outputs} outputs, and \
                 FP8 needs multiples of {MULTIPLE}: choose layers without it"
            );
            return Err(NnError::Sizes(text));
        }
        let scope = weight.device().module(&format!("{layer}.weight"));
        let copies = Fp8Weight::new(weight, fp8.recipe(), fp8.gradients())?;
        drop(scope);
        self.copies.push(copies.clone());
        Ok(Some(copies))
    }

    /// Returns the settings of a norm with this epsilon, which measures the largest magnitudes of its results
    /// if FP8 matmuls read them.
    #[must_use]
    pub fn norm_settings(&self, epsilon: f32) -> NormSettings {
        let measures = self.chosen.as_ref().is_some_and(|fp8| fp8.recipe() == Fp8Recipe::Tensorwise);
        NormSettings { epsilon, measures, ..NormSettings::default() }
    }

    /// Records that the weights may have changed, so that copies are cast again at their next use.
    pub fn outdate(&self) {
        self.copies.iter().for_each(Fp8Weight::outdate);
    }

    /// The FP8 copies of a weight, if its layer multiplies in FP8.
    #[must_use]
    pub fn copies_of(&self, weight: &WeightHandle) -> Option<&Fp8Weight> {
        self.copies.iter().find(|copies| copies.weight().is(weight))
    }

    /// Names of all linear layers in order of creation, except layers that use another layer's weight.
    #[must_use]
    pub fn linear_layers(&self) -> &[String] {
        &self.layers
    }
}
