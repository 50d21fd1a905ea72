//! The keys of a `config.json`, by kind of model.

use system::readers::{FileKey, Reader, Unlisted};

const OTHER_RESULT: &str = "it changes what the model computes";
/// Values of a setting that have no effect.
const NONE: &[&str] = &["false", "0", "\"\"", "[]", "{}"];

/// Settings of every kind of model.
pub const CONFIG: Reader = Reader {
    of: "`config.json` of any model",
    keys: &[
        FileKey::known(
            &["model_type", "architecture"],
            "the kind of model; timm's files have `architecture`",
        ),
        FileKey::refused(
            &["quantization_config", "compression_config"],
            NONE,
            "save the model in bf16 or f32; lora.base keeps a frozen base in codes",
        ),
        FileKey::refused(&["per_layer_config", "pruned_heads"], NONE, "all layers of a stack are alike"),
        FileKey::refused(&["is_encoder_decoder", "add_cross_attention"], NONE, OTHER_RESULT),
        FileKey::refused(&["is_causal"], &["true"], OTHER_RESULT),
        FileKey::ignored(
            &[
                "bos_token_id",
                "eos_token_id",
                "eod_token_id",
                "unk_token_id",
                "sep_token_id",
                "cls_token_id",
                "mask_token_id",
                "decoder_start_token_id",
                "forced_bos_token_id",
                "forced_eos_token_id",
                "tokenizer_class",
            ],
            "tokens are the tokenizer's",
        ),
        FileKey::ignored(
            &["initializer_range", "initializer_factor"],
            "weights come from the folder, or are drawn as for other models",
        ),
        FileKey::ignored(
            &["dtype", "torch_dtype", "use_bfloat16"],
            "precision.compute is the type; exports take it up",
        ),
        FileKey::ignored(
            &[
                "attn_implementation",
                "_attn_implementation",
                "_attn_implementation_internal",
                "_attn_implementation_autoset",
                "_flash_attn_2_enabled",
                "experts_implementation",
                "pretraining_tp",
                "chunk_size_feed_forward",
                "use_cache",
                "cache_implementation",
                "gradient_checkpointing",
                "torchscript",
                "is_decoder",
                "tie_encoder_decoder",
                "cross_attention_hidden_size",
            ],
            "they say how transformers compute the same",
        ),
        FileKey::ignored(
            &[
                "id2label",
                "label2id",
                "num_labels",
                "problem_type",
                "finetuning_task",
                "task_specific_params",
                "output_attentions",
                "output_hidden_states",
                "output_router_logits",
                "return_dict",
                "return_dict_in_generate",
                "output_scores",
                "remove_invalid_values",
            ],
            "they are for classifiers, or add outputs",
        ),
        FileKey::ignored(
            &[
                "do_sample",
                "temperature",
                "top_k",
                "top_p",
                "typical_p",
                "num_beams",
                "num_beam_groups",
                "diversity_penalty",
                "num_return_sequences",
                "repetition_penalty",
                "encoder_no_repeat_ngram_size",
                "no_repeat_ngram_size",
                "length_penalty",
                "early_stopping",
                "bad_words_ids",
                "begin_suppress_tokens",
                "suppress_tokens",
                "exponential_decay_length_penalty",
                "max_length",
                "min_length",
                "tf_legacy_loss",
                "prefix",
            ],
            "older settings of `generate`; `plimsoll sample` has options",
        ),
        FileKey::ignored(
            &["architectures", "transformers_version", "_name_or_path", "_commit_hash", "auto_map"],
            "they name classes and versions",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::Other("Other keys are named in one line of the log."),
};

/// Settings of GPT-2.
pub(crate) const GPT2: Reader = Reader {
    of: "`config.json` of GPT-2",
    keys: &[
        FileKey::known(
            &["n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "tie_word_embeddings"],
            "sizes",
        ),
        FileKey::known(&["n_inner"], "only 4 × `n_embd`"),
        FileKey::known(&["activation_function"], "`model.activation`"),
        FileKey::known(&["attn_pdrop", "embd_pdrop", "resid_pdrop"], "one probability; 0.1 if absent"),
        FileKey::known(&["layer_norm_epsilon"], "only 1e-5"),
        FileKey::refused(&["scale_attn_weights"], &["true"], OTHER_RESULT),
        FileKey::refused(
            &["scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"],
            &["false"],
            OTHER_RESULT,
        ),
        FileKey::ignored(&["n_ctx"], "`n_positions` is the number of positions"),
        FileKey::ignored(&["pad_token_id"], "GPT-2's embedding has no padding"),
        FileKey::ignored(
            &[
                "summary_type",
                "summary_use_proj",
                "summary_activation",
                "summary_proj_to_labels",
                "summary_first_dropout",
            ],
            "they are for another head",
        ),
    ],
    shared: &[&CONFIG],
    unlisted: Unlisted::Other("Other keys are named in one line of the log."),
};

/// Settings of rotary frequencies.
pub(crate) const ROPE: Reader = Reader {
    of: "`rope_parameters` and `rope_scaling`",
    keys: &[
        FileKey::known(
            &["rope_type", "type"],
            "`default`, `linear`, `llama3`, `yarn`, `longrope` or Gemma 4's `proportional`; settings of another \
             type are refused",
        ),
        FileKey::known(
            &["rope_theta", "partial_rotary_factor", "original_max_position_embeddings"],
            "also beside the object, where they must be equal",
        ),
        FileKey::known(&["factor"], "the factor of positions; not of `default`"),
        FileKey::known(&["low_freq_factor", "high_freq_factor"], "of `llama3`"),
        FileKey::known(&["beta_slow", "beta_fast", "truncate", "mscale", "mscale_all_dim"], "of `yarn`"),
        FileKey::known(&["attention_factor"], "of `yarn` and `longrope`"),
        FileKey::known(&["short_factor", "long_factor"], "of `longrope`"),
        FileKey::known(&["alpha"], "of `dynamic`, which Hunyuan alone has"),
        FileKey::known(&["llama_4_scaling_beta"], "growth of queries with their position, of Ministral 3"),
        FileKey::ignored(
            &["max_position_embeddings"],
            "the model's number of positions beside the object counts",
        ),
        FileKey::ignored(&["finetuned"], "a note about the training"),
    ],
    shared: &[],
    unlisted: Unlisted::RefusedIfSet,
};

/// Settings of `linear_attn_config`.
pub(crate) const DELTA: Reader = Reader {
    of: "`linear_attn_config` of Kimi Linear",
    keys: &[
        FileKey::known(&["num_heads", "head_dim", "short_conv_kernel_size"], "sizes of linear attention"),
        FileKey::known(
            &["kda_layers", "full_attn_layers"],
            "numbers of the layers with linear attention and of the others, from 1; `layer_types` precedes them",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::RefusedIfSet,
};
