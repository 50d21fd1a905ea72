//! Modules of the family `llama` that predict later tokens.

use super::sizes::LlamaSizes;
use crate::layers::LlamaBlockSizes;

impl LlamaSizes {
    /// Returns the layer whose mixer the blocks of modules have: the last one with attention, or the last
    /// one.
    pub(super) fn layer_of_modules(&self) -> usize {
        let last = self.layers - 1;
        (0..self.layers).rev().find(|layer| self.attends(*layer)).unwrap_or(last)
    }

    /// Returns the layer whose feed-forward layers or experts the blocks of modules have, if it is not
    /// [`Self::layer_of_modules`]: the last one with experts, or the last one with feed-forward layers.
    pub(super) fn feed_forward_of_modules(&self) -> Option<usize> {
        let mut layers = (0..self.layers).rev().filter(|_| self.single_branches);
        let with_experts = layers.clone().find(|layer| self.has_experts(*layer));
        with_experts.or_else(|| layers.find(|layer| self.branches(*layer)[1]))
    }

    /// Returns the sizes of the blocks of modules, which have two branches.
    pub(super) fn block_of_modules(&self) -> LlamaBlockSizes {
        let block = self.block(self.layer_of_modules());
        let Some(layer) = self.feed_forward_of_modules() else { return block };
        let other = self.block(layer);
        LlamaBlockSizes {
            branches: [true; 2],
            feed_forward: other.feed_forward,
            mixture: other.mixture,
            ..block
        }
    }

    /// Returns the option that excludes modules, with its value; `None` if modules can be added.
    pub(super) fn option_without_modules(&self) -> Option<String> {
        let attends = self.attends(self.layer_of_modules());
        if self.single_branches && !(attends && self.feed_forward_of_modules().is_some()) {
            let key = Self::single_branches;
            return Some(format!("{key} = true without attention or without feed-forward layers"));
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
