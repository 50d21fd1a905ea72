//! Modules of the family `llama` that predict later tokens.

use super::sizes::LlamaSizes;

impl LlamaSizes {
    /// Returns the layer whose options the blocks of modules have: the last one with attention, or the last
    /// one.
    pub(super) fn layer_of_modules(&self) -> usize {
        let last = self.layers - 1;
        (0..self.layers).rev().find(|layer| self.attends(*layer)).unwrap_or(last)
    }

    /// Returns the option that excludes modules, with its value; `None` if modules can be added.
    pub(super) fn option_without_modules(&self) -> Option<String> {
        if self.single_branches {
            return Some(format!("{} = true", Self::single_branches));
        }
        let sizes = [
            (Self::layer_embedding_width, self.layer_embedding_width),
            (Self::shared_layers, self.shared_layers),
            (Self::base_width, if self.scaling_by_width().is_none() { 0 } else { self.base_width }),
        ];
        let (key, value) = sizes.into_iter().find(|(_, value)| *value > 0)?;
        Some(format!("{key} = {value}"))
    }
}
