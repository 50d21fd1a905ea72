//! The families of Hugging Face folders, one record each.

use keys::Value;

use super::experts::{
    BOUNDED_GATE, DENSE_OR_ROUTED, GATED_EXPERTS, LOCAL_EXPERTS, ROUTED_EXPERTS, SPARSE_EXPERTS,
    UNIFORM_EXPERTS,
};
use super::family::{Absent, ExpertLayout, FolderFamily, Keys, LLAMA, none};
use super::latents::{LATENT_ROPE, LATENTS};
use super::linear_attention::{GROUPED_LINEAR_ATTENTION, LINEAR_ATTENTION};
use super::options::{
    ALL_BIASES, ATTENTION_BIAS, CAPS, FLAT_ROPE, HALF_ROPE, LAYER_ROPE, LAYER_TYPES, MLP_BIAS, MULTIPLIERS,
    NO_BIASES, NO_DROPOUT, NO_WINDOW, ONE_WINDOW, PADDING, QK_NORM, QKV_BIAS, QUARTER_ROPE, QUERY_SCALAR,
    ROPE_LAYERS, SWITCHED_WINDOW,
};
use crate::hugging_face::FolderConfig;
use crate::models::llama::sizes::LlamaSizes;

/// All families. If the configuration names none, a model is written as the first family that has its
/// options.
pub(super) const FAMILIES: &[FolderFamily] = &[
    FolderFamily {
        model_type: "llama",
        architecture: "LlamaForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: LLAMA,
        fixed: none,
        options: &[NO_WINDOW, ATTENTION_BIAS, MLP_BIAS, FLAT_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: LLAMA,
        fixed: |_| Ok(vec![(LlamaSizes::qkv_bias, true.into())]),
        options: &[NO_WINDOW, NO_BIASES, FLAT_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { head_width: Some(128), ..LLAMA },
        fixed: |_| Ok(vec![(LlamaSizes::qk_norm, true.into())]),
        options: &[NO_WINDOW, ATTENTION_BIAS, FLAT_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { window: Some(4096), ..LLAMA },
        fixed: none,
        options: &[PADDING, ONE_WINDOW, NO_BIASES, FLAT_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "ministral",
        architecture: "MinistralForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { window: Some(4096), ..LLAMA },
        fixed: none,
        options: &[PADDING, LAYER_TYPES, NO_BIASES, FLAT_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "smollm3",
        architecture: "SmolLM3ForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { tied: true, theta: [2_000_000.0; 2], padding: Some(128_004), ..LLAMA },
        fixed: none,
        options: &[PADDING, SWITCHED_WINDOW, ROPE_LAYERS, ATTENTION_BIAS, MLP_BIAS, FLAT_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "granite",
        architecture: "GraniteForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: LLAMA,
        fixed: none,
        options: &[PADDING, NO_WINDOW, MULTIPLIERS, ATTENTION_BIAS, MLP_BIAS, FLAT_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "phi3",
        architecture: "Phi3ForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { epsilon: 1e-5, padding: Some(32_000), ..LLAMA },
        fixed: none,
        options: &[PADDING, ONE_WINDOW, NO_DROPOUT, NO_BIASES, FLAT_ROPE],
        is_fused: true,
        experts: None,
    },
    FolderFamily {
        model_type: "olmo2",
        architecture: "Olmo2ForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { epsilon: 1e-5, padding: Some(1), ..LLAMA },
        fixed: olmo,
        options: &[PADDING, NO_WINDOW, ATTENTION_BIAS, FLAT_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "olmo3",
        architecture: "Olmo3ForCausalLM",
        activation: "hidden_act",
        own_activation: None,
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
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "gemma2",
        architecture: "Gemma2ForCausalLM",
        activation: "hidden_activation",
        own_activation: None,
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
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "gemma3_text",
        architecture: "Gemma3ForCausalLM",
        activation: "hidden_activation",
        own_activation: None,
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
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "mixtral",
        architecture: "MixtralForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { epsilon: 1e-5, theta: [1_000_000.0; 2], ..LLAMA },
        fixed: none,
        options: &[PADDING, ONE_WINDOW, NO_BIASES, FLAT_ROPE, LOCAL_EXPERTS],
        is_fused: false,
        experts: Some(ExpertLayout {
            module: "block_sparse_moe",
            router: "gate",
            parts: Some(["w1", "w3", "w2"]),
        }),
    },
    FolderFamily {
        model_type: "qwen3_moe",
        architecture: "Qwen3MoeForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: LLAMA,
        fixed: |_| Ok(vec![(LlamaSizes::qk_norm, true.into())]),
        options: &[PADDING, NO_WINDOW, ATTENTION_BIAS, FLAT_ROPE, SPARSE_EXPERTS],
        is_fused: false,
        experts: Some(ExpertLayout { module: "mlp", router: "gate", parts: Some(PROJECTIONS) }),
    },
    FolderFamily {
        model_type: "qwen3_5_text",
        architecture: "Qwen3_5ForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { head_width: Some(256), ..LLAMA },
        fixed: qwen_hybrid,
        options: &[PADDING, LINEAR_ATTENTION, ATTENTION_BIAS, QUARTER_ROPE],
        is_fused: false,
        experts: None,
    },
    FolderFamily {
        model_type: "qwen3_next",
        architecture: "Qwen3NextForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { head_width: Some(256), ..LLAMA },
        fixed: qwen_hybrid,
        options: &[PADDING, GROUPED_LINEAR_ATTENTION, ATTENTION_BIAS, QUARTER_ROPE, GATED_EXPERTS],
        is_fused: false,
        experts: Some(ExpertLayout { module: "mlp", router: "gate", parts: Some(PROJECTIONS) }),
    },
    FolderFamily {
        model_type: "qwen3_5_moe_text",
        architecture: "Qwen3_5MoeForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { head_width: Some(256), ..LLAMA },
        fixed: qwen_hybrid,
        options: &[PADDING, LINEAR_ATTENTION, ATTENTION_BIAS, QUARTER_ROPE, UNIFORM_EXPERTS],
        is_fused: false,
        experts: Some(ExpertLayout { module: "mlp", router: "gate", parts: Some(PROJECTIONS) }),
    },
    FolderFamily {
        model_type: "gpt_oss",
        architecture: "GptOssForCausalLM",
        activation: "hidden_act",
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
        is_fused: false,
        experts: Some(ExpertLayout { module: "mlp", router: "router", parts: None }),
    },
    FolderFamily {
        model_type: "glm4_moe",
        architecture: "Glm4MoeForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: Absent { epsilon: 1e-5, ..LLAMA },
        fixed: none,
        options: &[PADDING, NO_WINDOW, QKV_BIAS, QK_NORM, HALF_ROPE, ROUTED_EXPERTS],
        is_fused: false,
        experts: Some(ExpertLayout { module: "mlp", router: "gate", parts: Some(PROJECTIONS) }),
    },
    FolderFamily {
        model_type: "deepseek_v3",
        architecture: "DeepseekV3ForCausalLM",
        activation: "hidden_act",
        own_activation: None,
        absent: LLAMA,
        fixed: none,
        options: &[PADDING, NO_WINDOW, NO_BIASES, LATENTS, LATENT_ROPE, DENSE_OR_ROUTED],
        is_fused: false,
        experts: Some(ExpertLayout { module: "mlp", router: "gate", parts: Some(PROJECTIONS) }),
    },
];

/// The usual names of the gate, up and down matrices.
const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Returns whether a layer is not the last one of its period.
fn is_not_last(layer: usize, period: usize) -> bool {
    !(layer + 1).is_multiple_of(period)
}

fn qwen_hybrid(_: &FolderConfig) -> Result<Keys, String> {
    Ok(vec![(LlamaSizes::qk_norm, true.into()), (LlamaSizes::norms_less_one, true.into())])
}

fn olmo(_: &FolderConfig) -> Result<Keys, String> {
    Ok(vec![
        (LlamaSizes::norm_position, "after".into()),
        (LlamaSizes::qk_norm, true.into()),
        (LlamaSizes::qk_norm_span, "all".into()),
    ])
}

fn gemma(config: &FolderConfig) -> Result<Keys, String> {
    let width = config.count("hidden_size")? as f64;
    Ok(vec![
        (LlamaSizes::norm_position, "both".into()),
        (LlamaSizes::norms_less_one, true.into()),
        (LlamaSizes::embedding_scale, Value::from(width.sqrt())),
    ])
}
