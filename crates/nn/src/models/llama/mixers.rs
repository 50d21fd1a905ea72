//! The mixer of tokens in each layer.

use keys::RawValues;

use super::sizes::LlamaSizes;

system::names! {
    /// Layer of a block in which tokens interact, by its name in `layer_types`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SequenceMixer {
        /// Attention without a window.
        Full = "full_attention",
        /// Attention with a window.
        Sliding = "sliding_attention",
        /// The gated delta rule: a state per head instead of keys and values.
        LinearAttention = "linear_attention",
        /// A short causal convolution between two gates.
        Convolution = "convolution",
    }
}

impl SequenceMixer {
    /// Returns the mixer called `name`.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mixer| mixer.name() == name)
    }
}

impl LlamaSizes {
    /// Returns the mixer of `layer`.
    pub(super) fn mixer(&self, layer: usize) -> SequenceMixer {
        let types = &self.layer_types;
        let listed = types.get(layer % types.len().max(1)).and_then(|name| SequenceMixer::from_name(name));
        match (listed, self.window) {
            (None | Some(SequenceMixer::Sliding), 1..) => SequenceMixer::Sliding,
            (None | Some(SequenceMixer::Sliding), 0) => SequenceMixer::Full,
            (Some(mixer), _) => mixer,
        }
    }

    /// Returns whether any layer has `mixer`.
    pub(super) fn has_mixer(&self, mixer: SequenceMixer) -> bool {
        (0..self.layers).any(|layer| self.mixer(layer) == mixer)
    }

    /// Rejects unknown layer types, and windowed layers without a window.
    pub(super) fn check_mixers(&self, raw: &RawValues) -> keys::Result<()> {
        let types = &self.layer_types;
        if let Some(other) = types.iter().find(|name| SequenceMixer::from_name(name).is_none()) {
            let known = SequenceMixer::ALL.map(|mixer| format!("\"{}\"", mixer.name())).join(", ");
            let reason = format!("model.layer_types has \"{other}\", which is none of {known}");
            return Err(raw.conflict(&[Self::layer_types], reason));
        }
        let sliding = SequenceMixer::Sliding.name();
        if self.window == 0 && types.iter().any(|name| name == sliding) {
            let reason = format!("model.layer_types has \"{sliding}\", and model.window = 0");
            return Err(raw.conflict(&[Self::layer_types, Self::window], reason));
        }
        let unbuilt = [SequenceMixer::LinearAttention, SequenceMixer::Convolution];
        match unbuilt.into_iter().find(|mixer| self.has_mixer(*mixer)) {
            None => Ok(()),
            Some(other) => {
                let reason = format!("layers of type \"{}\" are not built", other.name());
                Err(raw.conflict(&[Self::layer_types], reason))
            }
        }
    }
}
