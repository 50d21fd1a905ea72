//! Invalid folders are refused with an error that names the reason.

use std::fs;

use safetensors::tensor::{TensorView, serialize_to_file};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::round_trip::shard;
use super::support::{config, copy, copy_of, folder, open};

#[test]
fn unsupported_configurations_are_refused() {
    let table: [(&str, Value, &str); 15] = [
        (
            "model_type",
            json!("bloom"),
            "model_type = \"bloom\" is not supported; the nearest that is, \"gpt2\", lacks ALiBi; supported: \"gpt2\"",
        ),
        ("model_type", Value::Null, "it has no model_type"),
        (
            "activation_function",
            json!("tanh"),
            "activation_function = \"tanh\" is not supported; supported: \"gelu_new\", \"gelu\"",
        ),
        ("n_layer", Value::Null, "it has no n_layer"),
        ("n_layer", json!(-1), "n_layer = -1 is not a positive integer"),
        ("n_layer", json!("two"), "n_layer = \"two\" is not a positive integer"),
        ("n_layer", json!(1_000_000_000), "model.layers = 1000000000 is not an integer from 1"),
        ("n_head", json!(3), "model.width = 128 is not a multiple of model.heads = 3"),
        ("n_inner", json!(100), "n_inner = 100 is not supported"),
        ("add_cross_attention", json!(true), "\"add_cross_attention\" = true is not supported"),
        ("scale_attn_weights", json!(false), "\"scale_attn_weights\" = false is not supported"),
        (
            "scale_attn_by_inverse_layer_idx",
            json!(true),
            "\"scale_attn_by_inverse_layer_idx\" = true is not supported",
        ),
        (
            "per_layer_config",
            json!({"0": {"n_head": 2}}),
            "\"per_layer_config\" = {\"0\":{\"n_head\":2}} is not",
        ),
        (
            "quantization_config",
            json!({"bits": 4}),
            "\"quantization_config\" = {\"bits\":4} is not supported",
        ),
        ("pruned_heads", json!({"0": [1]}), "\"pruned_heads\" = {\"0\":[1]} is not supported"),
    ];
    for (key, value, expected) in table {
        let directory = tempfile::tempdir().unwrap();
        copy(directory.path(), |config| config[key] = value.clone());
        let error = config(directory.path()).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json"), "{key} = {value}: {error}");
    }
}

#[test]
fn unsupported_configurations_of_llamas_are_refused() {
    let dynamic = json!({ "rope_type": "dynamic", "factor": 2.0 });
    let scaled = json!({ "sliding_attention": { "rope_type": "linear", "factor": 2.0 } });
    let factor_alone = json!({ "factor": 2.0 });
    let caps = json!({ "rope_type": "linear", "factor": 2.0, "beta_fast": 16 });
    let long = "z".repeat(40_000);
    let long_type = json!({ "type": long, "rope_type": "linear", "factor": 2.0 });
    let table: [(&str, &str, Value, &str); 60] = [
        (
            "llama",
            "hidden_act",
            json!("relu"),
            "hidden_act = \"relu\" is not supported; supported: \"silu\", \"gelu_pytorch_tanh\"",
        ),
        ("qwen2", "attention_bias", json!(true), "attention_bias = true is not supported"),
        ("qwen2", "mlp_bias", json!(true), "mlp_bias = true is not supported"),
        (
            "llama",
            "rope_scaling",
            dynamic,
            "rope_type = \"dynamic\" is not supported; supported: \"default\"",
        ),
        ("llama", "rope_scaling", factor_alone, "factor = 2.0 has no effect with rope_type = \"default\""),
        ("llama", "rope_scaling", caps, "beta_fast = 16 has no effect with rope_type = \"linear\""),
        ("llama", "is_causal", json!(false), "\"is_causal\" = false is not supported"),
        ("llama", "rope_scaling", long_type, "more characters and \"linear\": keep one of them"),
        ("llama", "hidden_act", json!(long), "more characters\" is not supported; supported: \"silu\""),
        ("llama", "model_type", json!(long), "more characters\" is not supported; supported: \"gpt2\""),
        ("qwen3", "layer_types", json!([long]), "more characters\", which is not supported"),
        ("llama", "rope_scaling", json!({ "type": "linear" }), "rope_type = \"linear\" has no factor"),
        (
            "llama",
            "rope_scaling",
            json!({ "type": "longrope" }),
            "rope_type = \"longrope\" has no short_factor",
        ),
        (
            "llama",
            "num_key_value_heads",
            json!(3),
            "model.key_value_heads = 3 does not divide model.heads = 4",
        ),
        ("qwen2", "use_sliding_window", json!(true), "use_sliding_window = true is not supported"),
        ("qwen3", "layer_types", json!(["sliding_attention"]), "layer_types has \"sliding_attention\""),
        ("qwen3", "rope_parameters", json!([1]), "rope_parameters = [1] is not an object"),
        (
            "families/gemma3",
            "layer_types",
            json!(["chunked_attention"]),
            "layer_types has \"chunked_attention\"",
        ),
        ("families/olmo3", "rope_parameters", scaled, "rope_type = \"linear\" of sliding_attention is not"),
        ("families/phi3", "resid_pdrop", json!(0.1), "resid_pdrop = 0.1 is not supported; supported: 0"),
        ("families/exaone4", "sliding_window", json!(null), "layer_types has \"sliding_attention\""),
        ("families/exaone4", "attention_bias", json!(true), "attention_bias = true is not supported"),
        ("families/olmoe", "clip_qkv", json!(0), "clip_qkv = 0 is not supported; supported: null"),
        ("families/hunyuan", "num_experts", json!(8), "num_experts = 8 is not supported; supported: 1"),
        ("families/hunyuan", "use_qk_norm", json!(false), "use_qk_norm = false is not supported"),
        ("families/hunyuan", "use_cla", json!(true), "\"use_cla\" = true is not supported"),
        ("families/seed-oss", "partial_rotary_factor", json!(0.5), "partial_rotary_factor = 0.5 is not"),
        ("families/minimax-m2", "scoring_func", json!("softmax"), "\"scoring_func\" = \"softmax\" is not"),
        ("families/minimax-m2", "attn_type_list", json!([1, 0]), "attn_type_list has 0, which is not"),
        ("families/minimax-m2", "router_jitter_noise", json!(0.1), "router_jitter_noise = 0.1 is not"),
        ("families/ernie4.5-moe", "use_bias", json!(true), "use_bias = true is not supported"),
        ("families/ernie4.5-moe", "moe_layer_end_index", json!(-2), "moe_layer_end_index = -2 is not"),
        ("llama", "use_bias", json!(true), "use_bias = true is not supported with model_type"),
        (
            "families/ministral",
            "rope_parameters",
            json!({ "rope_theta": 1e4, "rope_type": "default", "llama_4_scaling_beta": 0.1 }),
            "llama_4_scaling_beta = 0.1 is not supported with model_type = \"ministral\"",
        ),
        (
            "families/gemma4",
            "num_kv_shared_layers",
            json!(1),
            "model.shared_layers = 1: no layer before them is of the type of layer 3",
        ),
        ("families/gemma4", "enable_moe_block", json!(true), "enable_moe_block = true is not supported"),
        (
            "families/gemma4",
            "use_bidirectional_attention",
            json!("all"),
            "use_bidirectional_attention = \"all\" is not supported",
        ),
        (
            "families/gemma4",
            "per_layer_config",
            json!({ "1": { "head_dim": 48 } }),
            "per_layer_config has heads of layer 1 that differ from other layers",
        ),
        (
            "families/gemma4",
            "per_layer_config",
            json!({ "3": { "rms_norm_eps": 1e-5 } }),
            "per_layer_config has rms_norm_eps of layer 3, which is not supported",
        ),
        ("llama", "logit_scale", json!(0.5), "logit_scale = 0.5 is not supported with model_type"),
        (
            "families/glm4-moe-lite",
            "first_k_dense_replace",
            json!(2),
            "first_k_dense_replace = 2 is not supported with 1 dense first layers",
        ),
        ("families/olmo-hybrid", "linear_use_gate", json!(false), "linear_use_gate = false is not supported"),
        (
            "families/olmo-hybrid",
            "layer_types",
            json!(["linear_attention"]),
            "layer_types has no \"full_attention\", which OLMo Hybrid needs",
        ),
        ("families/kimi-linear", "mla_use_nope", json!(false), "mla_use_nope = false is not supported"),
        ("families/kimi-linear", "mla_use_output_gate", json!(true), "mla_use_output_gate\" = true is not"),
        (
            "families/kimi-linear",
            "moe_router_activation_func",
            json!("softmax"),
            "moe_router_activation_func = \"softmax\" is not supported; supported: \"sigmoid\"",
        ),
        (
            "families/kimi-linear",
            "linear_attn_config",
            json!({ "gate_lower_bound": -5.0 }),
            "gate_lower_bound",
        ),
        ("families/nemotron-h", "residual_in_fp32", json!(true), "residual_in_fp32 = true is not supported"),
        ("families/nemotron-h", "moe_latent_size", json!(-16), "moe_latent_size = -16 is not a positive"),
        ("families/nemotron-h", "hidden_dropout", json!(0.1), "hidden_dropout = 0.1 is not supported"),
        ("families/nemotron-h", "mamba_hidden_act", json!("gelu"), "mamba_hidden_act = \"gelu\" is not"),
        ("families/nemotron-h", "mlp_bias", json!(true), "mlp_bias = true is not supported"),
        (
            "families/nemotron-h",
            "sliding_window",
            json!(8),
            "sliding_window = 8 is not supported with model_type = \"nemotron_h\"",
        ),
        (
            "families/nemotron-h",
            "layers_block_type",
            json!(["mamba", "conv"]),
            "layers_block_type has \"conv\", which is not supported; supported: \"linear_attention\"",
        ),
        // Settings of other families that would change what is computed.
        ("llama", "linear_allow_neg_eigval", json!(true), "linear_allow_neg_eigval = true is not supported"),
        ("llama", "kv_lora_rank", json!(32), "kv_lora_rank = 32 is not supported with model_type"),
        (
            "llama",
            "attn_logit_softcapping",
            json!(50.0),
            "attn_logit_softcapping = 50.0 is not supported with model_type = \"llama\"",
        ),
        (
            "families/mistral",
            "residual_multiplier",
            json!(0.2),
            "residual_multiplier = 0.2 is not supported with model_type = \"mistral\"",
        ),
        ("families/gemma2", "num_experts", json!(8), "num_experts = 8 is not supported with model_type"),
        (
            "families/gemma3",
            "use_bidirectional_attention",
            json!(true),
            "use_bidirectional_attention = true is not supported with model_type = \"gemma3_text\"",
        ),
    ];
    for (name, key, value, expected) in table {
        let directory = tempfile::tempdir().unwrap();
        copy_of(name, directory.path(), |config| config[key] = value.clone());
        let error = config(directory.path()).unwrap_err();
        assert!(error.contains(expected) && error.len() < 1_000, "{key} = {value}: {error}");
    }
}

#[test]
fn tensors_of_another_model_are_refused() {
    type Change = fn(&mut Vec<(String, TensorView<'static>)>);
    let table: [(Change, &str); 5] = [
        (|tensors| tensors.retain(|(name, _)| !name.contains("wpe")), "it has no transformer.wpe.weight"),
        (
            |tensors| tensors.retain(|(name, _)| !name.contains("h.1.")),
            "it has no transformer.h.1.ln_1.weight, transformer.h.1.ln_1.bias, \
             transformer.h.1.attn.c_attn.weight and 9 more",
        ),
        (
            |tensors| tensors.push(("transformer.h.2.ln_1.bias".into(), zeros(Dtype::F32, &[4]))),
            "this model has no transformer.h.2.ln_1.bias",
        ),
        (
            |tensors| {
                tensors.iter_mut().for_each(|(name, view)| {
                    if name.ends_with("ln_f.bias") {
                        *view = zeros(Dtype::F32, &[127]);
                    }
                })
            },
            "transformer.ln_f.bias is [127] there and [128] in this model",
        ),
        (
            |tensors| {
                tensors.iter_mut().for_each(|(name, view)| {
                    if name.ends_with("ln_f.bias") {
                        *view = zeros(Dtype::F64, &[128]);
                    }
                })
            },
            "transformer.ln_f.bias is of type F64: F32, F16, BF16 and counts in I64 are read",
        ),
    ];
    let bytes: &'static [u8] = fs::read(folder("gpt2").join("model.safetensors")).unwrap().leak();
    for (change, expected) in table {
        let directory = tempfile::tempdir().unwrap();
        copy(directory.path(), |_| {});
        let mut tensors = SafeTensors::deserialize(bytes).unwrap().tensors();
        tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
        change(&mut tensors);
        serialize_to_file(tensors, None, &directory.path().join("model.safetensors")).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

fn zeros(dtype: Dtype, shape: &[usize]) -> TensorView<'static> {
    let bytes = vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8];
    TensorView::new(dtype, shape.to_vec(), bytes.leak()).unwrap()
}

#[test]
fn damaged_files_are_refused() {
    let whole = fs::read(folder("gpt2").join("model.safetensors")).unwrap();
    let huge = [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat();
    let table: [(&[u8], &str); 6] = [
        (&whole[..whole.len() - 1], "and its header describes"),
        (&whole[..1000], "its header would have"),
        (&whole[..4], "it has 4 bytes, and the length of its header alone takes 8"),
        (&[], "it has 0 bytes, and the length of its header alone takes 8"),
        (&huge, "its header would have"),
        (b"\x02\0\0\0\0\0\0\0[]", "its header is wrong"),
    ];
    for (bytes, expected) in table {
        let directory = tempfile::tempdir().unwrap();
        copy(directory.path(), |_| {});
        fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(error.contains(expected) && error.contains("model.safetensors"), "{error}");
    }
}

#[test]
fn wrong_indices_are_refused() {
    type Change = fn(&mut Value);
    let table: [(Change, &str); 4] = [
        (|index| index["weight_map"] = json!(3), "it has no weight_map"),
        (|index| index["weight_map"]["x"] = json!("../model.safetensors"), "is no file of the folder"),
        (|index| index["weight_map"]["x"] = json!("gone.safetensors"), "gone.safetensors: cannot open it"),
        (
            |index| index["weight_map"]["x"] = json!("model-00001-of-00002.safetensors"),
            "it places x in model-00001-of-00002.safetensors, which does not hold it",
        ),
    ];
    for (change, expected) in table {
        let directory = tempfile::tempdir().unwrap();
        let shards = directory.path().join("shards");
        shard(&folder("gpt2"), &shards, 2);
        let path = shards.join("model.safetensors.index.json");
        let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut index);
        fs::write(&path, index.to_string()).unwrap();
        let error = open(&shards).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let empty = tempfile::tempdir().unwrap();
    fs::copy(folder("gpt2").join("config.json"), empty.path().join("config.json")).unwrap();
    assert!(
        open(empty.path()).unwrap_err().contains("no model.safetensors and no model.safetensors.index.json")
    );
}

/// Weights in other formats are refused with a message that explains how to convert them.
#[test]
fn weights_in_other_formats_are_refused_with_the_way_to_convert_them() {
    let convert = "save_pretrained('FOLDER')\"` writes model.safetensors beside it";
    for (file, expected) in [
        ("pytorch_model.bin", convert),
        ("pytorch_model-00001-of-00002.bin", convert),
        ("consolidated.00.pth", "weights as in consolidated.00.pth are not read"),
        ("model.gguf", "weights as in model.gguf are not read"),
        ("notes.txt", "it has no model.safetensors and no model.safetensors.index.json"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        copy(directory.path(), |_| {});
        fs::remove_file(directory.path().join("model.safetensors")).unwrap();
        fs::write(directory.path().join(file), "").unwrap();
        let refused = open(directory.path()).unwrap_err();
        let expected = expected.replace("FOLDER", &directory.path().display().to_string());
        assert!(refused.contains(&expected), "{file}: {refused}");
        assert_eq!(refused.contains(file), file != "notes.txt", "{refused}");
    }
}
