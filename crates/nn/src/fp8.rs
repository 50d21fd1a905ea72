//! The linear layers whose matmuls have operands in FP8.

use autograd::ops::Fp8Recipe;
use device::DType;
use glob::Pattern;

/// The role of a linear layer in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearRole {
    /// Between others.
    Inner,
    /// The layer that gives the model's result.
    Head,
}

/// The choice of linear layers that multiply in FP8, and how their operands share factors.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8Layers {
    recipe: Fp8Recipe,
    gradients: DType,
    /// Globs of names; without one, all layers but a model's first one and its head.
    layers: Vec<Pattern>,
}

impl Fp8Layers {
    /// Chooses the layers whose names match one of the globs `layers`, or without one all but the first layer
    /// of a model and its head. Their gradients are cast to `gradients`, E4M3 or E5M2. Errors: an invalid
    /// glob, in a sentence.
    pub fn new(recipe: Fp8Recipe, gradients: DType, layers: &[String]) -> Result<Self, String> {
        let pattern = |glob: &String| {
            Pattern::new(glob).map_err(|error| format!("\"{glob}\" is no glob: {}", error.msg))
        };
        Ok(Fp8Layers { recipe, gradients, layers: layers.iter().map(pattern).collect::<Result<_, _>>()? })
    }

    /// Sharing of factors.
    #[must_use]
    pub fn recipe(&self) -> Fp8Recipe {
        self.recipe
    }

    /// Format of gradients.
    #[must_use]
    pub fn gradients(&self) -> DType {
        self.gradients
    }

    /// Returns whether the layer `name` is chosen; `is_first` says whether it is the model's first one.
    #[must_use]
    pub fn selects(&self, name: &str, role: LinearRole, is_first: bool) -> bool {
        match self.layers.is_empty() {
            true => role == LinearRole::Inner && !is_first,
            false => self.layers.iter().any(|pattern| pattern.matches(name)),
        }
    }

    /// Checks that every glob matches one of `names`, those of all linear layers, and that without globs a
    /// layer may be chosen. Errors: a sentence.
    pub fn check<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
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
