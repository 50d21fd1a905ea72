//! The experts of the family `llama`: their sizes per layer, and checks of their keys.

use keys::RawValues;

use super::sizes::LlamaSizes;
use crate::layers::{MixtureSizes, Routing, ScoreFunction};

impl LlamaSizes {
    /// Returns whether `layer` has experts.
    pub(super) fn has_experts(&self, layer: usize) -> bool {
        let layers = &self.expert_layers;
        let has_feed_forward = self.branches(layer)[1];
        has_feed_forward && self.experts > 0 && (layers.is_empty() || layers[layer % layers.len()] == 1)
    }

    /// Returns the experts' sizes of `layer`; `None` for a dense layer.
    pub(super) fn mixture(&self, layer: usize) -> Option<MixtureSizes> {
        let sizes = MixtureSizes {
            routing: Routing {
                experts: self.experts,
                per_token: self.experts_per_token,
                scores: self.router_scores,
                normalised: self.router_normalised,
                least_sum: self.router_least_sum as f32,
                scale: self.router_scale as f32,
                groups: self.expert_groups,
                groups_per_token: self.expert_groups_per_token,
                alignment: 1,
            },
            width: self.expert_width,
            latent_width: self.expert_latent_width,
            shared_width: self.shared_expert_width,
            shared_gate: self.shared_expert_gate,
            router_bias: self.router_bias,
            biases: self.mlp_bias,
            correction: self.router_correction,
        };
        self.has_experts(layer).then_some(sizes)
    }

    /// Returns whether any layer has feed-forward layers without experts.
    pub(super) fn has_dense_layers(&self) -> bool {
        (0..self.layers).any(|layer| self.branches(layer)[1] && !self.has_experts(layer))
    }

    /// Returns whether any layer has experts.
    pub(super) fn has_mixture(&self) -> bool {
        (0..self.layers).any(|layer| self.has_experts(layer))
    }

    /// Rejects inconsistent numbers of experts.
    pub(super) fn check_experts(&self, raw: &RawValues) -> keys::Result<()> {
        if self.experts == 0 {
            return Ok(());
        }
        let experts = self.experts;
        let groups = self.expert_groups;
        if !experts.is_multiple_of(groups) {
            let reason = format!("model.expert_groups = {groups} does not divide model.experts = {experts}");
            return Err(raw.conflict(&[Self::expert_groups, Self::experts], reason));
        }
        let open = self.expert_groups_per_token;
        if open > groups {
            let reason =
                format!("model.expert_groups_per_token = {open} is more than model.expert_groups = {groups}");
            return Err(raw.conflict(&[Self::expert_groups_per_token, Self::expert_groups], reason));
        }
        let chosen = self.experts_per_token;
        let most = experts / groups * open;
        if chosen > most {
            let reason = format!(
                "model.experts_per_token = {chosen} is more than the {most} experts that a token chooses from"
            );
            let keys = [Self::experts_per_token, Self::experts, Self::expert_groups_per_token];
            return Err(raw.conflict(&keys, reason));
        }
        Ok(())
    }

    /// Normalises the keys of experts in `sizes`, a copy of this model, so that equal models compare equal.
    pub(super) fn spell_experts(&self, sizes: &mut LlamaSizes) {
        if !self.router_normalised {
            sizes.router_least_sum = 0.0;
        }
        sizes.expert_layers = (0..self.layers).map(|layer| usize::from(self.has_experts(layer))).collect();
        if !self.has_dense_layers() {
            sizes.feed_forward = self.expert_width;
        }
        if self.has_mixture() {
            return;
        }
        sizes.experts = 0;
        sizes.experts_per_token = 2;
        (sizes.expert_width, sizes.expert_latent_width) = (self.feed_forward, 0);
        sizes.shared_expert_width = 0;
        sizes.shared_expert_gate = false;
        (sizes.router_scores, sizes.router_normalised) = (ScoreFunction::Softmax, true);
        (sizes.router_bias, sizes.router_correction, sizes.router_scale) = (false, false, 1.0);
        (sizes.expert_groups, sizes.expert_groups_per_token) = (1, 1);
        sizes.router_least_sum = 0.0;
    }
}
