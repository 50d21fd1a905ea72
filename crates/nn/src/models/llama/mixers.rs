//! The mixer of tokens in each layer.

use keys::RawValues;

use super::sizes::LlamaSizes;
use crate::layer_cache::LayerCache;
use crate::layers::{GateFunction, GatedDeltaSizes, ShortConvolutionSizes, StateHeads, StateSpaceSizes};

/// Type of a layer with an attention window.
pub(super) const SLIDING: &str = SequenceMixer::Sliding.name();
/// Type of a layer without an attention window.
pub(super) const FULL: &str = SequenceMixer::Full.name();

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
        /// A scan of selective state spaces, as in Mamba-2.
        StateSpace = "state_space",
        /// Attention and, beside it, state spaces; their results are added.
        AttentionAndStates = "attention_and_state_space",
        /// None: the layer has feed-forward layers alone.
        FeedForward = "feed_forward",
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

    /// Returns the short convolution of `layer`, if it has one.
    pub(super) fn convolution(&self, layer: usize) -> Option<ShortConvolutionSizes> {
        let sizes = ShortConvolutionSizes { taps: self.convolution_width, bias: self.convolution_bias };
        (self.mixer(layer) == SequenceMixer::Convolution).then_some(sizes)
    }

    /// Returns the state spaces of `layer`, if it has any.
    pub(super) fn state_space(&self, layer: usize) -> Option<StateSpaceSizes> {
        let sizes = StateSpaceSizes {
            heads: StateHeads {
                heads: self.state_heads,
                groups: self.state_groups,
                width: self.state_head_width,
                states: self.state_width,
            },
            taps: self.state_convolution_width,
            convolution_bias: self.state_convolution_bias,
            bias: self.state_bias,
            norm_groups: self.state_norm_groups,
            norm_first: self.state_norm_first,
            epsilon: self.norm_epsilon as f32,
            limits: self.step_limits().map(|limit| limit as f32),
            factors: self.state_factors(),
        };
        let mixer = self.mixer(layer);
        matches!(mixer, SequenceMixer::StateSpace | SequenceMixer::AttentionAndStates).then_some(sizes)
    }

    /// Returns the least and the largest time step of state-space layers.
    pub(super) fn step_limits(&self) -> [f64; 2] {
        let most = self.state_largest_step;
        [self.state_least_step, if most > 0.0 { most } else { f64::INFINITY }]
    }

    /// Returns the factors of the gate, x, B, C and the time steps of state-space layers.
    pub(super) fn state_factors(&self) -> [f64; 5] {
        factors(&self.state_scales)
    }

    /// Returns the factors of attention and of the state space beside it.
    pub(super) fn mixer_factors(&self) -> [f64; 2] {
        factors(&self.mixer_scales)
    }

    /// Returns whether any layer has a state over the sequence.
    pub(super) fn has_recurrence(&self) -> bool {
        let is_other = |layer| !self.attends(layer) && self.branches(layer)[0];
        self.has_state_spaces() || (0..self.layers).any(is_other)
    }

    /// Returns the keys and widths of the causal convolutions of all layers.
    pub(super) fn convolutions(&self) -> Vec<(&'static str, usize)> {
        let all = [
            (self.has_mixer(SequenceMixer::Convolution), Self::convolution_width, self.convolution_width),
            (self.has_state_spaces(), Self::state_convolution_width, self.state_convolution_width),
            (
                self.has_mixer(SequenceMixer::LinearAttention),
                Self::linear_convolution_width,
                self.linear_convolution_width,
            ),
        ];
        all.into_iter().filter(|(has, ..)| *has).map(|(_, key, width)| (key, width)).collect()
    }

    /// Returns whether any layer has state spaces.
    fn has_state_spaces(&self) -> bool {
        (0..self.layers).any(|layer| self.state_space(layer).is_some())
    }

    /// Rejects sizes of state-space layers that do not divide each other.
    fn check_state_spaces(&self, raw: &RawValues) -> keys::Result<()> {
        let Self { state_heads: heads, state_groups: groups, state_norm_groups: norms, .. } = *self;
        if !heads.is_multiple_of(groups) {
            let reason = format!("model.state_groups = {groups} does not divide model.state_heads = {heads}");
            return Err(raw.conflict(&[Self::state_groups, Self::state_heads], reason));
        }
        let columns = heads * self.state_head_width;
        if norms > 0 && !columns.is_multiple_of(norms) {
            let reason =
                format!("model.state_norm_groups = {norms} does not divide the {columns} columns of heads");
            return Err(raw.conflict(&[Self::state_norm_groups, Self::state_heads], reason));
        }
        for (key, factors, count) in
            [(Self::state_scales, &self.state_scales, 5), (Self::mixer_scales, &self.mixer_scales, 2)]
        {
            if ![1, count].contains(&factors.len()) {
                let reason = format!("{key} has {} numbers instead of {count} or 1", factors.len());
                return Err(raw.conflict(&[key], reason));
            }
        }
        let [least, most] = self.step_limits();
        if least > most {
            let reason =
                format!("model.state_least_step = {least} is above model.state_largest_step = {most}");
            return Err(raw.conflict(&[Self::state_least_step, Self::state_largest_step], reason));
        }
        Ok(())
    }

    /// Returns the caches that `layer` keeps for each sequence when text is generated.
    pub(super) fn mixer_caches(&self, layer: usize) -> Vec<Vec<LayerCache>> {
        let mut caches = Vec::new();
        if self.attends(layer) {
            caches.push(vec![LayerCache::Attention(self.cached_in(layer))]);
        }
        if let Some(sizes) = self.convolution(layer) {
            caches.push(vec![LayerCache::Convolution { taps: sizes.taps, channels: self.width }]);
        }
        if let Some(StateSpaceSizes { heads, taps, .. }) = self.state_space(layer) {
            let channels = heads.packed_columns();
            // Shards may exchange columns between both, so each is a part by itself.
            caches.push(vec![LayerCache::Convolution { taps, channels }]);
            caches.push(vec![LayerCache::States(heads)]);
        }
        if let Some(GatedDeltaSizes { settings, taps, .. }) = self.delta(layer) {
            let heads = settings.heads;
            let channels = heads.packed_columns();
            caches.push(vec![LayerCache::Convolution { taps, channels }, LayerCache::Delta(heads)]);
        }
        caches
    }

    /// Normalises the keys of layers other than attention in `sizes`, a copy of this model, so that equal
    /// models compare equal.
    pub(super) fn spell_mixers(&self, sizes: &mut LlamaSizes) {
        sizes.state_scales = self.state_factors().to_vec();
        sizes.mixer_scales = self.mixer_factors().to_vec();
        if !self.has_mixer(SequenceMixer::Convolution) {
            (sizes.convolution_width, sizes.convolution_bias) = (3, false);
        }
        if !self.has_mixer(SequenceMixer::LinearAttention) {
            (sizes.linear_channel_decays, sizes.linear_gate_rank) = (false, 0);
            (sizes.linear_gate, sizes.linear_epsilon) = (GateFunction::Silu, self.norm_epsilon);
            sizes.linear_norm_position = self.norm_position;
        }
        if self.has_state_spaces() {
            return;
        }
        (sizes.state_heads, sizes.state_head_width, sizes.state_width) = (self.heads, 64, 128);
        (sizes.state_groups, sizes.state_norm_groups, sizes.state_norm_first) = (1, 1, false);
        (sizes.state_convolution_width, sizes.state_convolution_bias, sizes.state_bias) = (4, true, false);
        (sizes.state_least_step, sizes.state_largest_step) = (0.0, 0.0);
        (sizes.state_scales, sizes.mixer_scales) = (vec![1.0; 5], vec![1.0; 2]);
    }

    /// Returns the sizes of sequence mixers other than attention that `lanes` must divide, each with its key.
    /// Several lanes may share a group of state-space heads, or of the columns of their norm; each lane then
    /// has an equal part of the group's columns.
    pub(super) fn divided_mixers(&self, lanes: usize) -> Vec<(&'static str, usize)> {
        let mut sizes = Vec::new();
        if self.has_mixer(SequenceMixer::Convolution) {
            sizes.push((Self::width, self.width));
        }
        if self.has_state_spaces() {
            let Self { state_groups: groups, state_norm_groups: norms, .. } = *self;
            let is_shared = |groups: usize| lanes.is_multiple_of(groups);
            sizes.push((Self::state_heads, self.state_heads));
            if !is_shared(groups) {
                sizes.push((Self::state_groups, groups));
            } else if !(groups * self.state_width).is_multiple_of(lanes) {
                sizes.push((Self::state_width, self.state_width));
            }
            if !is_shared(norms) {
                sizes.push((Self::state_norm_groups, norms));
            }
        }
        sizes
    }

    /// Returns whether `layer` has the attention window.
    pub(super) fn is_windowed(&self, layer: usize) -> bool {
        self.mixer(layer) == SequenceMixer::Sliding
    }

    /// Returns whether `layer` has attention.
    pub(super) fn attends(&self, layer: usize) -> bool {
        let mixer = self.mixer(layer);
        matches!(mixer, SequenceMixer::Full | SequenceMixer::Sliding | SequenceMixer::AttentionAndStates)
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
        if self.has_state_spaces() {
            self.check_state_spaces(raw)?;
        }
        let alone = SequenceMixer::FeedForward.name();
        if !self.single_branches && types.iter().any(|name| name == alone) {
            let reason = format!("model.layer_types has \"{alone}\", and model.single_branches = false");
            return Err(raw.conflict(&[Self::layer_types, Self::single_branches], reason));
        }
        let sliding = SequenceMixer::Sliding.name();
        if self.window == 0 && types.iter().any(|name| name == sliding) {
            let reason = format!("model.layer_types has \"{sliding}\", and model.window = 0");
            return Err(raw.conflict(&[Self::layer_types, Self::window], reason));
        }
        self.check_linear(raw)
    }
}

/// Returns `N` factors; a list of one has it for all.
fn factors<const N: usize>(listed: &[f64]) -> [f64; N] {
    let one = listed.first().copied().unwrap_or(1.0);
    listed.try_into().unwrap_or([one; N])
}
