//! The sharding of the family's parameters over tensor ranks.

use super::sizes::LlamaSizes;
use crate::layers::QkNormSpan;
use crate::parameters::MOST_MODULES;
use crate::placements::PlacementTable;

impl LlamaSizes {
    /// Returns the placement table. Norms between layers, routers, and the layers that compute latents are
    /// not sharded.
    pub(super) fn placement_table(&self) -> PlacementTable {
        let heads = self.attention_heads();
        let [queries, keys, values] = heads.groups_of_columns();
        let gates = if self.attention_gate { heads.output_columns() } else { 0 };
        let linear = self.linear_heads().groups_of_columns();
        let gate_and_up = |hidden: usize| vec![hidden; 2];
        let columns = self.state_heads * self.state_head_width;
        let states = self.state_groups * self.state_width;
        let norms_rows = self.qk_norm && self.qk_norm_span == QkNormSpan::All;
        let mut table = PlacementTable::new();
        let modules = (0..MOST_MODULES).map(|module| (self.layers + module, self.layer_of_modules()));
        let layers = (0..self.layers).map(|layer| (layer, layer)).chain(modules);
        let is_full = |alike: usize| self.has_full_heads() && !self.is_windowed(alike);
        for (layer, alike) in layers.filter(|(_, alike)| is_full(*alike)) {
            let [queries, keys, values] = self.heads_of(alike).groups_of_columns();
            let groups = [queries, keys, values];
            let groups = if self.keys_as_values { &groups[..2] } else { &groups };
            table = table.column(format!("model.layers.{layer}.self_attn.qkv_proj"), groups);
        }
        for layer in (0..self.layers).filter(|layer| self.reads_shared(*layer)) {
            let groups = gate_and_up(self.feed_forward_of(layer));
            table = table.column(format!("model.layers.{layer}.mlp.gate_up_proj"), &groups);
        }
        let table = table
            .column("model.embed_tokens_per_layer.weight", &[])
            .column("model.embed_tokens.weight", &[])
            .column("lm_head", &[])
            .column("*.self_attn.qkv_proj", &[queries + gates, keys, values])
            .column("*.self_attn.q_proj", &[])
            .column("*.self_attn.q_b_proj", &[])
            .column("*.self_attn.kv_b_proj", &[])
            .column("*.self_attn.sinks", &[])
            .row("*.self_attn.o_proj")
            .column("*.conv.in_proj", &[self.width; 3])
            .column("*.conv.conv.weight", &[])
            .column("*.conv.conv.bias", &[])
            .row("*.conv.out_proj")
            .column("*.mamba.in_proj", &[columns, columns, states, states, self.state_heads])
            .column("*.mamba.conv1d.weight", &[columns, states, states])
            .column("*.mamba.conv1d.bias", &[columns, states, states])
            .column("*.mamba.A_log", &[])
            .column("*.mamba.D", &[])
            .column("*.mamba.dt_bias", &[])
            .column("*.mamba.norm.weight", &[])
            .row("*.mamba.out_proj")
            .column("*.linear_attn.in_proj_qkv", &linear)
            .column("*.linear_attn.in_proj_*", &[])
            .column("*.linear_attn.g_b_proj", &[])
            .column("*.linear_attn.f_b_proj", &[])
            .column("*.linear_attn.conv1d.weight", &linear)
            .column("*.linear_attn.dt_bias", &[])
            .column("*.linear_attn.A_log", &[])
            .row("*.linear_attn.out_proj")
            .column("*.mlp.shared_experts.gate_up_proj", &gate_and_up(self.shared_expert_width))
            .column("*.mlp.shared_experts.up_proj", &[])
            .column("*.mlp.experts.up_proj", &vec![self.expert_width; self.experts])
            .column("*.mlp.experts.gate_up_proj", &vec![self.expert_width; 2 * self.experts])
            .column("*.mlp.gate_up_proj", &gate_and_up(self.feed_forward))
            .column("*.mlp.up_proj", &[])
            .row("*.down_proj")
            .with_sharded_rows();
        match norms_rows {
            true => table.column("*.self_attn.q_norm.weight", &[]).column("*.self_attn.k_norm.weight", &[]),
            false => table,
        }
    }
}
