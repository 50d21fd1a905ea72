//! The families of Hugging Face folders, one record each.

use keys::Value;

use super::cohere::COHERE_2;
use super::convolutions::{ADJUSTED_WIDTH, CONVOLUTIONS};
use super::ernie::{BIASES, EVERY_BIAS, MOE_EXPERTS};
use super::experts::{
    ALL_EXPERTS, BOUNDED_GATE, DENSE_OR_ROUTED, GATED_EXPERTS, LISTED_EXPERTS, LOCAL_EXPERTS, ROUTED_EXPERTS,
    SPARSE_EXPERTS, UNIFORM_EXPERTS,
};
use super::family::{
    Absent, ExpertLayout, FolderFamily, Keys, LLAMA, LatentDefaults, ROUTER, USUAL, is_not_last,
};
use super::gemma4::GEMMA_4;
use super::kimi_linear::KIMI_LINEAR;
use super::latents::{LATENT_ROPE, LATENTS};
use super::linear_attention::{GROUPED_LINEAR_ATTENTION, LINEAR_ATTENTION};
use super::minimax::{ATTENTION_TYPES, ROTARY_DIM};
use super::nemotron::NEMOTRON_H;
use super::olmo_hybrid::OLMO_HYBRID;
use super::options::{
    ALL_BIASES, ALPHA_ROPE, ATTENTION_BIAS, ATTENTION_DROPOUT, CAPS, DENSE, DROPOUT, FLAT_ROPE, GROWING_ROPE,
    HALF_ROPE, LAYER_ROPE, LAYER_TYPES, MLP_BIAS, MULTIPLIERS, NO_BIASES, NO_CLIP, NO_DROPOUT, NO_WINDOW,
    ONE_WINDOW, OUTPUT_BIAS, PADDING, QK_NORM, QKV_BIAS, QUARTER_ROPE, QUERY_SCALAR, ROPE_LAYERS, SCORE_CAP,
    SWITCHED_WINDOW, WHOLE_ROPE, WINDOW_ROPE,
};
use super::side_by_side::SIDE_BY_SIDE;
use super::state_spaces::{POSITIONS, SHARED_EXPERTS, STATE_SPACES};
use crate::hugging_face::FolderConfig;
use crate::models::llama::sizes::LlamaSizes;

/// All families. If the configuration names none, a model is written as the first family that has its
/// options.
pub(super) const FAMILIES: &[FolderFamily] = &[
    FolderFamily {
        model_type: "llama",
        architecture: "LlamaForCausalLM",
        options: &[NO_WINDOW, ATTENTION_BIAS, MLP_BIAS, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        fixed: |_| Ok(vec![(LlamaSizes::qkv_bias, true.into())]),
        options: &[NO_WINDOW, NO_BIASES, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        absent: Absent { head_width: Some(128), ..LLAMA },
        fixed: |_| Ok(vec![(LlamaSizes::qk_norm, true.into())]),
        options: &[NO_WINDOW, ATTENTION_BIAS, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        absent: Absent { window: Some(4096), ..LLAMA },
        options: &[PADDING, ONE_WINDOW, NO_BIASES, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "ministral",
        architecture: "MinistralForCausalLM",
        absent: Absent { window: Some(4096), ..LLAMA },
        options: &[PADDING, LAYER_TYPES, NO_BIASES, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "smollm3",
        architecture: "SmolLM3ForCausalLM",
        absent: Absent { tied: true, theta: [2_000_000.0; 2], padding: Some(128_004), ..LLAMA },
        options: &[PADDING, SWITCHED_WINDOW, ROPE_LAYERS, ATTENTION_BIAS, MLP_BIAS, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "granite",
        architecture: "GraniteForCausalLM",
        options: &[PADDING, NO_WINDOW, MULTIPLIERS, ATTENTION_BIAS, MLP_BIAS, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "phi3",
        architecture: "Phi3ForCausalLM",
        absent: Absent { epsilon: 1e-5, padding: Some(32_000), ..LLAMA },
        options: &[PADDING, ONE_WINDOW, NO_DROPOUT, NO_BIASES, FLAT_ROPE],
        is_fused: true,
        ..USUAL
    },
    FolderFamily {
        model_type: "olmo2",
        architecture: "Olmo2ForCausalLM",
        absent: Absent { epsilon: 1e-5, padding: Some(1), ..LLAMA },
        fixed: olmo,
        options: &[PADDING, NO_WINDOW, ATTENTION_BIAS, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "olmo3",
        architecture: "Olmo3ForCausalLM",
        absent: Absent {
            epsilon: 1e-5,
            theta: [500_000.0; 2],
            window: Some(4096),
            windowed: |layer, _| is_not_last(layer, 4),
            padding: Some(1),
            ..LLAMA
        },
        fixed: olmo,
        options: &[PADDING, LAYER_TYPES, ATTENTION_BIAS, LAYER_ROPE],
        ..USUAL
    },
    OLMO_HYBRID,
    FolderFamily {
        model_type: "gemma2",
        architecture: "Gemma2ForCausalLM",
        activation: "hidden_activation",
        absent: Absent {
            head_width: Some(256),
            tied: true,
            window: Some(4096),
            windowed: |layer, _| is_not_last(layer, 2),
            caps: [50.0, 30.0],
            padding: Some(0),
            ..LLAMA
        },
        fixed: gemma,
        options: &[PADDING, LAYER_TYPES, CAPS, QUERY_SCALAR, ATTENTION_BIAS, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "gemma3_text",
        architecture: "Gemma3ForCausalLM",
        activation: "hidden_activation",
        absent: Absent {
            head_width: Some(256),
            tied: true,
            theta: [1_000_000.0, 10_000.0],
            window: Some(4096),
            windowed: |layer, period| is_not_last(layer, period.unwrap_or(6)),
            padding: Some(0),
            ..LLAMA
        },
        fixed: |config| Ok([gemma(config)?, vec![(LlamaSizes::qk_norm, true.into())]].concat()),
        options: &[PADDING, LAYER_TYPES, CAPS, QUERY_SCALAR, ATTENTION_BIAS, LAYER_ROPE],
        ..USUAL
    },
    GEMMA_4,
    FolderFamily {
        model_type: "mixtral",
        architecture: "MixtralForCausalLM",
        absent: Absent { epsilon: 1e-5, theta: [1_000_000.0; 2], ..LLAMA },
        options: &[PADDING, ONE_WINDOW, NO_BIASES, FLAT_ROPE, LOCAL_EXPERTS],
        experts: Some(ExpertLayout { module: "block_sparse_moe", parts: Some(["w1", "w3", "w2"]), ..ROUTER }),
        ..USUAL
    },
    FolderFamily {
        model_type: "qwen3_moe",
        architecture: "Qwen3MoeForCausalLM",
        fixed: |_| Ok(vec![(LlamaSizes::qk_norm, true.into())]),
        options: &[PADDING, NO_WINDOW, ATTENTION_BIAS, FLAT_ROPE, SPARSE_EXPERTS],
        experts: Some(ROUTER),
        ..USUAL
    },
    FolderFamily {
        model_type: "qwen3_5_text",
        architecture: "Qwen3_5ForCausalLM",
        absent: Absent { head_width: Some(256), ..LLAMA },
        fixed: qwen_hybrid,
        options: &[PADDING, LINEAR_ATTENTION, ATTENTION_BIAS, QUARTER_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "qwen3_next",
        architecture: "Qwen3NextForCausalLM",
        absent: Absent { head_width: Some(256), ..LLAMA },
        fixed: qwen_hybrid,
        options: &[PADDING, GROUPED_LINEAR_ATTENTION, ATTENTION_BIAS, QUARTER_ROPE, GATED_EXPERTS],
        experts: Some(ROUTER),
        ..USUAL
    },
    FolderFamily {
        model_type: "qwen3_5_moe_text",
        architecture: "Qwen3_5MoeForCausalLM",
        absent: Absent { head_width: Some(256), ..LLAMA },
        fixed: qwen_hybrid,
        options: &[PADDING, LINEAR_ATTENTION, ATTENTION_BIAS, QUARTER_ROPE, UNIFORM_EXPERTS],
        experts: Some(ROUTER),
        ..USUAL
    },
    FolderFamily {
        model_type: "gpt_oss",
        architecture: "GptOssForCausalLM",
        own_activation: Some("quick-gelu"),
        absent: Absent {
            head_width: Some(64),
            epsilon: 1e-5,
            theta: [150_000.0; 2],
            window: Some(128),
            windowed: |layer, _| is_not_last(layer, 2),
            ..LLAMA
        },
        fixed: |config| {
            let limit = config.number("swiglu_limit")?.unwrap_or(7.0);
            Ok(vec![
                (LlamaSizes::attention_sinks, true.into()),
                (LlamaSizes::mlp_bias, true.into()),
                (LlamaSizes::router_bias, true.into()),
                (LlamaSizes::gate_limit, limit.into()),
                (LlamaSizes::gate_offset, 1.0.into()),
            ])
        },
        options: &[PADDING, LAYER_TYPES, ALL_BIASES, FLAT_ROPE, LOCAL_EXPERTS, BOUNDED_GATE],
        experts: Some(ExpertLayout { router: "router", parts: None, ..ROUTER }),
        ..USUAL
    },
    FolderFamily {
        model_type: "glm4_moe",
        architecture: "Glm4MoeForCausalLM",
        absent: Absent { epsilon: 1e-5, ..LLAMA },
        options: &[PADDING, NO_WINDOW, QKV_BIAS, QK_NORM, HALF_ROPE, ROUTED_EXPERTS],
        experts: Some(ROUTER),
        ..USUAL
    },
    FolderFamily {
        model_type: "lfm2",
        architecture: "Lfm2ForCausalLM",
        absent: Absent { tied: true, epsilon: 1e-5, theta: [1_000_000.0; 2], padding: Some(0), ..LLAMA },
        fixed: |_| Ok(vec![(LlamaSizes::qk_norm, true.into())]),
        options: &[PADDING, CONVOLUTIONS, ADJUSTED_WIDTH, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "granitemoehybrid",
        architecture: "GraniteMoeHybridForCausalLM",
        absent: Absent { theta: [10_000.0; 2], ..LLAMA },
        options: &[PADDING, STATE_SPACES, POSITIONS, MULTIPLIERS, ATTENTION_BIAS, FLAT_ROPE, SHARED_EXPERTS],
        experts: Some(ExpertLayout {
            module: "block_sparse_moe",
            router: "router.layer",
            parts: None,
            ..ROUTER
        }),
        ..USUAL
    },
    FolderFamily {
        model_type: "falcon_h1",
        architecture: "FalconH1ForCausalLM",
        absent: Absent { epsilon: 1e-5, theta: [100_000.0; 2], padding: Some(0), ..LLAMA },
        options: &[PADDING, SIDE_BY_SIDE, ATTENTION_BIAS, MLP_BIAS, FLAT_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "deepseek_v3",
        architecture: "DeepseekV3ForCausalLM",
        options: &[PADDING, NO_WINDOW, ATTENTION_BIAS, LATENTS, LATENT_ROPE, DENSE_OR_ROUTED],
        experts: Some(ROUTER),
        ..USUAL
    },
    KIMI_LINEAR,
    FolderFamily {
        model_type: "seed_oss",
        architecture: "SeedOssForCausalLM",
        absent: Absent { head_width: Some(128), key_value_heads: Some(8), padding: Some(1), ..LLAMA },
        options: &[PADDING, NO_WINDOW, DROPOUT, OUTPUT_BIAS, MLP_BIAS, WHOLE_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "hunyuan_v1_dense",
        architecture: "HunYuanDenseV1ForCausalLM",
        absent: Absent { epsilon: 1e-5, padding: Some(0), ..LLAMA },
        fixed: |_| Ok(vec![(LlamaSizes::qk_norm, true.into()), (LlamaSizes::qk_norm_last, true.into())]),
        options: &[PADDING, NO_WINDOW, DENSE, ATTENTION_DROPOUT, ATTENTION_BIAS, ALPHA_ROPE],
        qk_norms: ["query_layernorm", "key_layernorm"],
        ..USUAL
    },
    FolderFamily {
        model_type: "exaone4",
        architecture: "Exaone4ForCausalLM",
        absent: Absent {
            epsilon: 1e-5,
            key_value_heads: Some(32),
            window: Some(4096),
            windowed: |layer, period| is_not_last(layer, period.unwrap_or(4)),
            ..LLAMA
        },
        fixed: |_| Ok(vec![(LlamaSizes::qk_norm, true.into()), (LlamaSizes::norm_position, "after".into())]),
        options: &[PADDING, WINDOW_ROPE, NO_BIASES, ATTENTION_DROPOUT, WHOLE_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "olmoe",
        architecture: "OlmoeForCausalLM",
        absent: Absent { epsilon: 1e-5, padding: Some(1), ..LLAMA },
        fixed: norms_of_rows,
        options: &[PADDING, NO_WINDOW, NO_CLIP, ATTENTION_DROPOUT, ATTENTION_BIAS, WHOLE_ROPE, ALL_EXPERTS],
        experts: Some(ROUTER),
        ..USUAL
    },
    FolderFamily {
        model_type: "minimax_m2",
        architecture: "MiniMaxM2ForCausalLM",
        absent: Absent { head_width: Some(128), key_value_heads: Some(8), theta: [5_000_000.0; 2], ..LLAMA },
        fixed: |config| {
            let router = vec![
                (LlamaSizes::router_scores, "sigmoid".into()),
                (LlamaSizes::router_correction, true.into()),
            ];
            Ok([norms_of_rows(config)?, router].concat())
        },
        options: &[
            PADDING,
            NO_WINDOW,
            NO_BIASES,
            ATTENTION_DROPOUT,
            ROTARY_DIM,
            ATTENTION_TYPES,
            LOCAL_EXPERTS,
        ],
        experts: Some(ExpertLayout {
            module: "block_sparse_moe",
            parts: Some(["w1", "w3", "w2"]),
            correction: "e_score_correction_bias",
            ..ROUTER
        }),
        ..USUAL
    },
    FolderFamily {
        model_type: "ernie4_5",
        architecture: "Ernie4_5ForCausalLM",
        absent: Absent {
            head_width: Some(128),
            key_value_heads: Some(2),
            tied: true,
            epsilon: 1e-5,
            theta: [500_000.0; 2],
            padding: Some(0),
            ..LLAMA
        },
        fixed: interleaved,
        options: &[PADDING, NO_WINDOW, EVERY_BIAS, WHOLE_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "ernie4_5_moe",
        architecture: "Ernie4_5_MoeForCausalLM",
        absent: Absent {
            key_value_heads: Some(4),
            tied: true,
            epsilon: 1e-5,
            theta: [500_000.0; 2],
            padding: Some(0),
            ..LLAMA
        },
        fixed: interleaved,
        options: &[PADDING, NO_WINDOW, BIASES, WHOLE_ROPE, MOE_EXPERTS],
        experts: Some(ExpertLayout {
            correction: "moe_statics.e_score_correction_bias",
            correction_is_matrix: true,
            ..ROUTER
        }),
        ..USUAL
    },
    FolderFamily {
        model_type: "glm4_moe_lite",
        architecture: "Glm4MoeLiteForCausalLM",
        absent: Absent {
            epsilon: 1e-5,
            latents: LatentDefaults { queries: 768, plain: 192, values: 256 },
            ..LLAMA
        },
        options: &[PADDING, NO_WINDOW, ATTENTION_BIAS, LATENTS, LATENT_ROPE, LISTED_EXPERTS],
        experts: Some(ROUTER),
        ..USUAL
    },
    FolderFamily {
        model_type: "ministral3",
        architecture: "Ministral3ForCausalLM",
        absent: Absent { head_width: Some(128), epsilon: 1e-5, padding: Some(11), ..LLAMA },
        options: &[PADDING, ONE_WINDOW, NO_BIASES, GROWING_ROPE],
        ..USUAL
    },
    FolderFamily {
        model_type: "nanochat",
        architecture: "NanoChatForCausalLM",
        absent: Absent { caps: [0.0, 15.0], padding: Some(1), ..LLAMA },
        fixed: |_| {
            Ok(vec![
                (LlamaSizes::gated, false.into()),
                (LlamaSizes::norm_weights, false.into()),
                (LlamaSizes::embedding_norm, true.into()),
                (LlamaSizes::qk_norm, true.into()),
                (LlamaSizes::qk_norm_last, true.into()),
                (LlamaSizes::rope_reversed, true.into()),
            ])
        },
        options: &[PADDING, NO_WINDOW, ATTENTION_BIAS, FLAT_ROPE, SCORE_CAP],
        ..USUAL
    },
    COHERE_2,
    NEMOTRON_H,
];

fn qwen_hybrid(_: &FolderConfig) -> Result<Keys, String> {
    Ok(vec![(LlamaSizes::qk_norm, true.into()), (LlamaSizes::norms_less_one, true.into())])
}

fn olmo(config: &FolderConfig) -> Result<Keys, String> {
    Ok([norms_of_rows(config)?, vec![(LlamaSizes::norm_position, "after".into())]].concat())
}

fn norms_of_rows(_: &FolderConfig) -> Result<Keys, String> {
    Ok(vec![(LlamaSizes::qk_norm, true.into()), (LlamaSizes::qk_norm_span, "all".into())])
}

fn interleaved(_: &FolderConfig) -> Result<Keys, String> {
    Ok(vec![(LlamaSizes::rope_interleaved, true.into())])
}

fn gemma(config: &FolderConfig) -> Result<Keys, String> {
    let width = config.count("hidden_size")? as f64;
    Ok(vec![
        (LlamaSizes::norm_position, "both".into()),
        (LlamaSizes::norms_less_one, true.into()),
        (LlamaSizes::embedding_scale, Value::from(width.sqrt())),
    ])
}
