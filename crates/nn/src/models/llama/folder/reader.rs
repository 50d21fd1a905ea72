//! The keys of a `config.json` of Llama and similar models.

use system::readers::{FileKey, Reader, Unlisted};

use crate::hugging_face::readers::CONFIG;

/// Settings of all families of folders.
pub(crate) const LLAMA: Reader = Reader {
    of: "`config.json` of Llama, Mistral, Qwen, Gemma, Phi, OLMo, SmolLM, Granite, GLM, gpt-oss, DeepSeek-V3, Qwen3.5, \
         Seed-OSS, Hunyuan, EXAONE 4, MiniMax-M2, Ernie 4.5, LFM2, Falcon-H1, nanochat, Cohere, OLMo Hybrid, \
         Kimi Linear, Nemotron-H",
    keys: &[
        FileKey::known(
            &[
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "hidden_size",
                "head_dim",
                "intermediate_size",
                "max_position_embeddings",
                "vocab_size",
                "tie_word_embeddings",
            ],
            "sizes",
        ),
        FileKey::known(
            &[
                "rms_norm_eps",
                "layer_norm_eps",
                "layer_norm_epsilon",
                "hidden_act",
                "hidden_activation",
                "mlp_hidden_act",
            ],
            "norms and activation",
        ),
        FileKey::known(&["attention_dropout", "residual_dropout"], "dropout; only 0 in many families"),
        FileKey::known(
            &[
                "rope_theta",
                "rope_scaling",
                "rope_parameters",
                "rope_local_base_freq",
                "partial_rotary_factor",
                "rotary_dim",
                "original_max_position_embeddings",
                "rope_interleave",
                "no_rope_layers",
                "no_rope_layer_interval",
            ],
            "rotary positions",
        ),
        FileKey::known(
            &[
                "sliding_window",
                "use_sliding_window",
                "max_window_layers",
                "layer_types",
                "sliding_window_pattern",
                "_sliding_window_pattern",
            ],
            "windows",
        ),
        FileKey::known(
            &[
                "full_attention_interval",
                "linear_conv_kernel_dim",
                "linear_key_head_dim",
                "linear_num_key_heads",
                "linear_num_value_heads",
                "linear_value_head_dim",
                "attn_output_gate",
                "linear_allow_neg_eigval",
                "linear_use_gate",
            ],
            "linear attention of Qwen3.5 and OLMo Hybrid",
        ),
        FileKey::known(
            &["linear_attn_config", "linear_head_dim", "linear_num_heads"],
            "linear attention of Kimi Linear",
        ),
        FileKey::known(&["mla_use_nope"], "only true: no layer rotates, in Kimi Linear"),
        FileKey::known(&["model_max_length"], "Kimi Linear's `max_position_embeddings`"),
        FileKey::known(
            &[
                "num_experts_per_token",
                "num_shared_experts",
                "moe_layer_freq",
                "moe_renormalize",
                "num_expert_group",
                "use_grouped_topk",
                "dense_ffn_hidden",
            ],
            "experts of Kimi Linear",
        ),
        FileKey::known(&["moe_router_activation_func"], "only `sigmoid`"),
        FileKey::ignored(
            &[
                "linear_a_log_min",
                "linear_a_log_max",
                "linear_dt_min",
                "linear_dt_max",
                "linear_dt_init_floor",
            ],
            "initial values of linear attention in OLMo Hybrid",
        ),
        FileKey::known(&["attention_bias", "attention_out_bias", "mlp_bias", "use_bias"], "biases"),
        FileKey::known(&["embd_pdrop", "resid_pdrop"], "only 0"),
        FileKey::known(&["use_qk_norm"], "norms of queries and keys"),
        FileKey::known(
            &["attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"],
            "Gemma's caps and scale of scores",
        ),
        FileKey::known(
            &["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"],
            "Granite's factors",
        ),
        FileKey::known(
            &[
                "per_layer_config",
                "global_head_dim",
                "num_global_key_value_heads",
                "attention_k_eq_v",
                "num_kv_shared_layers",
                "use_double_wide_mlp",
                "use_bidirectional_attention",
                "hidden_size_per_layer_input",
                "vocab_size_per_layer_input",
            ],
            "Gemma 4's heads by type of layer, embeddings for each layer, and layers that share keys and values",
        ),
        FileKey::known(&["enable_moe_block", "top_k_experts"], "Gemma 4's experts: only false"),
        FileKey::known(&["logit_scale"], "Cohere's factor of the scores of tokens"),
        FileKey::known(
            &[
                "num_local_experts",
                "num_experts",
                "n_routed_experts",
                "n_shared_experts",
                "num_experts_per_tok",
                "moe_intermediate_size",
                "decoder_sparse_step",
                "mlp_only_layers",
                "shared_expert_intermediate_size",
                "first_k_dense_replace",
                "mlp_layer_types",
                "norm_topk_prob",
                "routed_scaling_factor",
                "n_group",
                "topk_group",
                "swiglu_limit",
                "swiglu_alpha",
                "moe_num_experts",
                "moe_k",
                "moe_num_shared_experts",
                "moe_layer_start_index",
                "moe_layer_end_index",
                "moe_layer_interval",
                "moe_norm_min",
            ],
            "experts",
        ),
        FileKey::ignored(
            &["moe_capacity", "moe_gate", "moe_use_aux_free"],
            "transformers drops no tokens and does not read them",
        ),
        FileKey::refused(&["scoring_func"], &["\"sigmoid\""], "the family decides the scores of experts"),
        FileKey::known(&["use_routing_bias"], "only true, corrections of experts"),
        FileKey::known(&["qk_norm_type"], "only `per_layer`, one norm of all heads"),
        FileKey::known(&["attn_type_list"], "only 1, softmax attention"),
        FileKey::known(&["clip_qkv"], "only null"),
        FileKey::known(&["router_jitter_noise"], "only 0"),
        FileKey::known(&["router_aux_loss_coef"], "`train.balance_loss` is the factor of a run"),
        FileKey::known(
            &[
                "num_nextn_predict_layers",
                "num_mtp_layers",
                "num_mtp_modules",
                "use_mtp",
                "mtp_transformer_layers",
                "mtp_num_hidden_layers",
                "mtp_use_dedicated_embeddings",
                "mtp_layers_block_type",
                "mtp_hybrid_override_pattern",
            ],
            "modules that predict later tokens: `train.predict_tokens` trains them, and exports keep them",
        ),
        FileKey::known(
            &[
                "kv_lora_rank",
                "q_lora_rank",
                "qk_head_dim",
                "qk_nope_head_dim",
                "qk_rope_head_dim",
                "v_head_dim",
            ],
            "latents of DeepSeek",
        ),
        FileKey::known(
            &["conv_L_cache", "conv_bias", "full_attn_idxs", "norm_eps", "tie_embedding"],
            "short convolutions of LFM2",
        ),
        FileKey::known(
            &["block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"],
            "width of the feed-forward layers of LFM2",
        ),
        FileKey::known(
            &[
                "layers_block_type",
                "mamba_n_heads",
                "mamba_n_groups",
                "mamba_d_state",
                "mamba_d_head",
                "mamba_d_conv",
                "mamba_expand",
                "mamba_conv_bias",
                "mamba_proj_bias",
                "time_step_limit",
            ],
            "layers of Mamba-2",
        ),
        FileKey::known(
            &["mamba_d_ssm", "mamba_rms_norm", "mamba_norm_before_gate", "projectors_bias"],
            "layers of Mamba-2 in Falcon-H1",
        ),
        FileKey::known(
            &[
                "attention_in_multiplier",
                "attention_out_multiplier",
                "key_multiplier",
                "ssm_in_multiplier",
                "ssm_out_multiplier",
                "ssm_multipliers",
                "mlp_multipliers",
                "lm_head_multiplier",
            ],
            "Falcon-H1's factors",
        ),
        FileKey::known(&["mamba_chunk_size"], "the length of chunks is fixed"),
        FileKey::known(
            &[
                "hybrid_override_pattern",
                "ssm_state_size",
                "mamba_num_heads",
                "mamba_head_dim",
                "n_groups",
                "conv_kernel",
                "use_conv_bias",
                "mamba_dt_limit",
                "moe_shared_expert_intermediate_size",
                "moe_latent_size",
                "attention_head_dim",
            ],
            "layers of Nemotron-H",
        ),
        FileKey::known(&["mamba_hidden_act"], "only \"silu\""),
        FileKey::known(&["residual_in_fp32"], "only false"),
        FileKey::known(&["hidden_dropout"], "only 0"),
        FileKey::ignored(
            &[
                "time_step_max",
                "time_step_floor",
                "mamba_dt_max",
                "mamba_dt_init_floor",
                "time_step_rank",
                "rescale_prenorm_residual",
            ],
            "initial values are drawn as for other models",
        ),
        FileKey::known(
            &["time_step_min", "mamba_dt_min"],
            "least time step of Nemotron-H; others have `time_step_limit` alone",
        ),
        FileKey::ignored(
            &[
                "chunk_size",
                "expand",
                "use_mamba_kernels",
                "mamba_ssm_cache_dtype",
                "num_logits_to_keep",
                "moe_shared_expert_overlap",
            ],
            "they say how transformers compute the same",
        ),
        FileKey::known(&["position_embedding_type"], "\"rope\", or \"nope\": no layer has positions"),
        FileKey::known(
            &["shared_intermediate_size"],
            "width of Granite 4's shared layers; in MiniMax-M2 only 0",
        ),
        FileKey::known(&["pad_token_id"], "a token whose embedding has no gradient, in some families"),
        FileKey::refused(
            &[
                "use_cla",
                "use_mla",
                "position_embedding_xdrope",
                "attention_chunk_size",
                "attn_temperature_tuning",
                "alibi",
                "mla_use_output_gate",
                "attn_res_block_size",
                "forget_gate_lower_bound",
                "use_full_rank_output_gate",
                "routed_expert_hidden_size",
                "latent_moe_use_norm",
            ],
            &["false", "0", "[]", "{}"],
            "no family that is built has it",
        ),
    ],
    shared: &[&CONFIG],
    unlisted: Unlisted::Other(
        "A setting that another of these families reads is refused by name, unless it is null, false, 0, empty, \
         or 1 for a factor. Other keys are named in one line of the log.",
    ),
};

/// Settings beside the language model's, in folders of models with other parts.
pub(crate) const WITH_PARTS: Reader = Reader {
    of: "`config.json` of Gemma 3, Gemma 4, Mistral 3, Qwen3.5 and its mixture with images, beside `text_config`",
    keys: &[
        FileKey::known(&["text_config"], "the settings of the language model, as in a folder of its own"),
        FileKey::known(&["tie_word_embeddings"], "takes precedence over the one in `text_config`"),
        FileKey::ignored(
            &[
                "vision_config",
                "audio_config",
                "image_token_index",
                "image_token_id",
                "video_token_id",
                "audio_token_id",
                "boi_token_index",
                "eoi_token_index",
                "boi_token_id",
                "eoi_token_id",
                "boa_token_id",
                "eoa_token_id",
                "eoa_token_index",
                "mm_tokens_per_image",
                "projector_hidden_act",
                "multimodal_projector_bias",
                "spatial_merge_size",
                "vision_start_token_id",
                "vision_end_token_id",
                "vision_feature_layer",
                "vision_soft_tokens_per_image",
                "pad_token_id",
            ],
            "other parts are not trained; exports keep their tensors and files",
        ),
    ],
    shared: &[&CONFIG],
    unlisted: Unlisted::Other("Other keys are named in one line of the log."),
};

#[cfg(test)]
mod tests {
    use super::LLAMA;
    use crate::models::llama::folder::families::FAMILIES;

    #[test]
    fn all_settings_of_families_are_listed() {
        for family in FAMILIES {
            let names = family.options.iter().flat_map(|option| option.names);
            for name in names.copied().chain([family.activation, "model_type"]) {
                assert!(LLAMA.key(name).is_some(), "{name} of {}", family.model_type);
            }
        }
    }
}
