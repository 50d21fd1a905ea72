//! Names of modules that differ from Llama's in some families.

use crate::hugging_face::FolderTensor;

/// Modules with other names in a family: (`model_type`, our name, the folder's name).
const RENAMED: &[(&str, &str, &str)] = &[
    ("lfm2", ".input_layernorm.", ".operator_norm."),
    ("lfm2", ".post_attention_layernorm.", ".ffn_norm."),
    ("lfm2", ".mlp.gate_proj.", ".feed_forward.w1."),
    ("lfm2", ".mlp.up_proj.", ".feed_forward.w3."),
    ("lfm2", ".mlp.down_proj.", ".feed_forward.w2."),
    ("lfm2", ".self_attn.o_proj.", ".self_attn.out_proj."),
    ("lfm2", ".q_norm.", ".q_layernorm."),
    ("lfm2", ".k_norm.", ".k_layernorm."),
    ("lfm2", "model.norm.", "model.embedding_norm."),
    ("granitemoehybrid", ".mlp.shared_experts.", ".shared_mlp."),
    ("granitemoehybrid", ".mlp.gate_up_proj.", ".shared_mlp.gate_up_proj."),
    ("granitemoehybrid", ".mlp.down_proj.", ".shared_mlp.down_proj."),
    ("granitemoehybrid", ".shared_mlp.gate_up_proj.", ".shared_mlp.input_linear."),
    ("granitemoehybrid", ".shared_mlp.down_proj.", ".shared_mlp.output_linear."),
    ("falcon_h1", ".post_attention_layernorm.", ".pre_ff_layernorm."),
    ("falcon_h1", ".mlp.", ".feed_forward."),
    ("falcon_h1", "model.norm.", "model.final_layernorm."),
    ("kimi_linear", ".linear_attn.in_proj_b.", ".linear_attn.b_proj."),
    ("kimi_linear", ".linear_attn.norm.", ".linear_attn.o_norm."),
    ("kimi_linear", ".linear_attn.out_proj.", ".linear_attn.o_proj."),
    ("kimi_linear", ".linear_attn.", ".self_attn."),
    ("kimi_linear", ".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
    ("nanochat", ".mlp.up_proj.", ".mlp.fc1."),
    ("nanochat", ".mlp.down_proj.", ".mlp.fc2."),
    (NEMOTRON_H, ".input_layernorm.", ".norm."),
    (NEMOTRON_H, ".post_attention_layernorm.", ".norm."),
    (NEMOTRON_H, ".self_attn.", ".mixer."),
    (NEMOTRON_H, ".mamba.", ".mixer."),
    (NEMOTRON_H, ".mlp.", ".mixer."),
    (NEMOTRON_H, "model.norm.", "backbone.norm_f."),
    (NEMOTRON_H, "model.embed_tokens.", "backbone.embeddings."),
    (NEMOTRON_H, "model.layers.", "backbone.layers."),
    ("olmo_hybrid", ".linear_attn.in_proj_z.", ".linear_attn.g_proj."),
    ("olmo_hybrid", ".linear_attn.in_proj_b.", ".linear_attn.b_proj."),
    ("olmo_hybrid", ".linear_attn.in_proj_a.", ".linear_attn.a_proj."),
    ("olmo_hybrid", ".linear_attn.norm.", ".linear_attn.o_norm."),
    ("olmo_hybrid", ".linear_attn.out_proj.", ".linear_attn.o_proj."),
];

/// The `model_type` of Nemotron-H, whose names begin otherwise than Llama's.
pub(super) const NEMOTRON_H: &str = "nemotron_h";

/// Returns the prefix of tensor names and the name of the embedding table, if they are not Llama's.
pub(super) fn prefix_and_embedding(model_type: &str) -> Option<[&'static str; 2]> {
    (model_type == NEMOTRON_H).then_some(["backbone.", "backbone.embeddings.weight"])
}

/// Returns whether the gate and the layer beside it are one tensor, though queries, keys and values are not.
pub(super) fn fuses_gate(model_type: &str) -> bool {
    model_type == "granitemoehybrid"
}

/// Returns whether queries, keys and values of linear attention are separate tensors.
pub(super) fn splits_linear(model_type: &str) -> bool {
    ["olmo_hybrid", "kimi_linear"].contains(&model_type)
}

/// Renames tensors as in a family's folders.
pub(super) fn rename(tensors: &mut [FolderTensor], model_type: &str) {
    for (_, ours, theirs) in RENAMED.iter().filter(|(name, ..)| *name == model_type) {
        tensors.iter_mut().for_each(|tensor| tensor.name = tensor.name.replace(ours, theirs));
    }
}
