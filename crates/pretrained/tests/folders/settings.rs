//! Settings that have no effect, are absent, or are written in another way.

use serde_json::{Value, json};

use super::support::{config, copy, copy_of, folder, layout, open};

/// Settings of other families are accepted if they have no effect, and errors name unknown settings.
#[test]
fn settings_without_an_effect_are_accepted() {
    let directory = tempfile::tempdir().unwrap();
    copy_of("families/mistral", directory.path(), |config| {
        config["attn_logit_softcapping"] = Value::Null;
        config["residual_multiplier"] = json!(1.0);
        config["num_local_experts"] = json!(0);
        config["use_cache"] = json!(true);
        config["unheard_of"] = json!(7);
        config["also_new"] = json!("x");
    });
    let [plain, changed] = [&folder("families/mistral"), directory.path()].map(|at| config(at).unwrap());
    assert_eq!(changed.model.values(), plain.model.values());
    let notes = changed.folder_notes();
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.contains("config.json") && note.ends_with("ignored: unheard_of, also_new"), "{note}");
    assert!(plain.folder_notes().is_empty());
    // Of every kind of model.
    copy(directory.path(), |config| config["unheard_of"] = json!(7));
    assert!(config(directory.path()).unwrap().folder_notes()[0].ends_with("ignored: unheard_of"));
    copy(directory.path(), |config| (0..999).for_each(|index| config[format!("key_{index}")] = json!(7)));
    assert!(config(directory.path()).unwrap().folder_notes()[0].ends_with(" more characters"));
}

/// Settings that a folder omits default to the family's own values.
#[test]
fn absent_settings_have_the_values_of_the_family() {
    type Change = fn(&mut serde_json::Map<String, Value>);
    let table: [(&str, Change); 14] = [
        ("families/gemma2", |config| {
            for key in ["tie_word_embeddings", "layer_types", "hidden_activation", "pad_token_id"] {
                config.remove(key);
            }
            config.insert("hidden_act".to_owned(), json!("gelu"));
        }),
        ("families/gemma3", |config| {
            for key in ["rope_parameters", "tie_word_embeddings", "rms_norm_eps"] {
                config.remove(key);
            }
            config.insert("rope_theta".to_owned(), json!(1e6));
            config.insert("rope_local_base_freq".to_owned(), json!(10_000));
        }),
        ("families/gemma3", |config| {
            config.remove("layer_types");
            config.remove("_sliding_window_pattern");
            config.insert("sliding_window_pattern".to_owned(), json!(2));
        }),
        ("families/smollm3", |config| {
            config.remove("no_rope_layers");
            config.insert("no_rope_layer_interval".to_owned(), json!(2));
            config.remove("rope_parameters");
        }),
        ("families/phi3", |config| {
            config.insert("rope_theta".to_owned(), json!(10_000));
            config.insert("rope_scaling".to_owned(), Value::Null);
            config.remove("rope_parameters");
        }),
        ("families/seed-oss", |config| {
            for key in ["attention_bias", "attention_out_bias", "mlp_bias", "rope_parameters"] {
                config.remove(key);
            }
        }),
        ("families/exaone4", |config| {
            config.remove("layer_types");
            config.remove("sliding_window_pattern");
        }),
        ("families/olmoe", |config| {
            for key in ["norm_topk_prob", "clip_qkv", "attention_bias", "num_experts"] {
                config.remove(key);
            }
            config.insert("num_local_experts".to_owned(), json!(6));
        }),
        ("families/olmo-hybrid", |config| {
            config.retain(|key, _| !key.starts_with("linear_") || key == "linear_key_head_dim");
            for key in ["layer_types", "num_key_value_heads", "rms_norm_eps", "rope_parameters"] {
                config.remove(key);
            }
            config.insert("rope_theta".to_owned(), json!(10_000));
            config.insert("linear_use_gate".to_owned(), json!(true));
        }),
        ("families/kimi-linear", |config| {
            config.retain(|key, _| !key.starts_with("linear_"));
            for key in ["layer_types", "mlp_layer_types", "q_lora_rank", "routed_scaling_factor"] {
                config.remove(key);
            }
            let sizes = json!({
                "head_dim": 16, "num_heads": 2, "short_conv_kernel_size": 4,
                "kda_layers": [1, 2, 3], "full_attn_layers": [4],
            });
            let released = [
                ("linear_attn_config", sizes),
                ("first_k_dense_replace", json!(1)),
                ("moe_layer_freq", json!(1)),
                ("mla_use_nope", json!(true)),
                ("moe_router_activation_func", json!("sigmoid")),
                ("use_grouped_topk", json!(true)),
                ("rope_theta", json!(10_000.0)),
                ("rope_scaling", Value::Null),
                ("num_nextn_predict_layers", json!(0)),
            ];
            config.extend(released.map(|(key, value)| (key.to_owned(), value)));
        }),
        ("families/minimax-m2", |config| {
            config.remove("rope_parameters");
            config.insert("rotary_dim".to_owned(), json!(24));
            config.insert("use_qk_norm".to_owned(), json!(true));
            config.insert("use_routing_bias".to_owned(), json!(true));
            config.insert("scoring_func".to_owned(), json!("sigmoid"));
            config.insert("attn_type_list".to_owned(), json!([1, 1, 1, 1]));
            config.insert("num_mtp_modules".to_owned(), json!(3));
        }),
        ("families/ernie4.5-moe", |config| {
            for key in ["tie_word_embeddings", "moe_norm_min", "moe_layer_interval", "moe_num_shared_experts"]
            {
                config.remove(key);
            }
            for key in ["moe_layer_start_index", "rope_parameters", "pad_token_id", "use_bias", "moe_k"] {
                config.remove(key);
            }
            config.insert("num_experts_per_tok".to_owned(), json!(2));
            config.insert("moe_layer_end_index".to_owned(), json!(-1));
        }),
        ("families/nemotron-h", |config| {
            for key in ["layers_block_type", "layer_norm_epsilon", "time_step_limit", "mlp_hidden_act"] {
                config.remove(key);
            }
            config.remove("time_step_min");
            config.insert("hybrid_override_pattern".to_owned(), json!("ME*-M"));
            config.insert("num_hidden_layers".to_owned(), json!(52));
            config.insert("norm_eps".to_owned(), json!(1e-5));
            config.insert("rope_theta".to_owned(), json!(10_000));
            config.insert("partial_rotary_factor".to_owned(), json!(1.0));
        }),
        ("families/nemotron-h", |config| {
            for (older, newer) in [
                ("mamba_n_groups", "n_groups"),
                ("mamba_d_conv", "conv_kernel"),
                ("mamba_dt_min", "time_step_min"),
                ("mamba_dt_limit", ""),
            ] {
                let value = config.remove(newer).unwrap_or_else(|| json!([0.0, "inf"]));
                config.insert(older.to_owned(), value);
            }
            let types = ["mamba", "moe", "attention", "mlp", "mamba"];
            config.insert("layers_block_type".to_owned(), json!(types));
        }),
    ];
    for (number, (name, change)) in table.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        copy_of(name, directory.path(), |config| change(config.as_object_mut().unwrap()));
        let [plain, changed] = [&folder(name), directory.path()].map(|at| config(at).unwrap());
        assert_eq!(changed.model.values(), plain.model.values(), "{name}, {number}");
    }
}

/// Experts of Nemotron 3 Super have a width of their own, and the router and shared experts the model's.
#[test]
fn latents_of_experts_are_a_setting() {
    let directory = tempfile::tempdir().unwrap();
    copy_of("families/nemotron-h", directory.path(), |config| config["moe_latent_size"] = json!(16));
    let model = layout(&config(directory.path()).unwrap());
    assert_eq!(model.config["moe_latent_size"], 16);
    for (part, shape) in [
        ("gate", [6, 48]),
        ("fc1_latent_proj", [16, 48]),
        ("experts.5.up_proj", [32, 16]),
        ("experts.5.down_proj", [16, 32]),
        ("fc2_latent_proj", [48, 16]),
        ("shared_experts.up_proj", [40, 48]),
    ] {
        let name = format!("backbone.layers.1.mixer.{part}.weight");
        let tensor = model.tensors.iter().find(|tensor| tensor.name == name);
        assert_eq!(tensor.map(|tensor| &tensor.shape[..]), Some(&shape[..]), "{name}");
    }
}

/// Ernie 4.5 without experts is its mixture with dense layers only.
#[test]
fn dense_ernie_is_its_mixture_without_experts() {
    let values = |change: fn(&mut serde_json::Map<String, Value>)| {
        let directory = tempfile::tempdir().unwrap();
        copy_of("families/ernie4.5-moe", directory.path(), |config| change(config.as_object_mut().unwrap()));
        let config = config(directory.path()).unwrap();
        let others = ["expert", "router", "hugging_face", "from = "];
        let text = config.to_toml();
        let dense = text.lines().filter(|line| !others.iter().any(|part| line.contains(part)));
        (layout(&config).tensors, dense.map(str::to_owned).collect::<Vec<_>>())
    };
    let mixture = values(|config| drop(config.insert("moe_layer_start_index".to_owned(), json!(4))));
    let dense = values(|config| {
        config.retain(|key, _| !key.starts_with("moe_") && key != "router_aux_loss_coef");
        config.insert("model_type".to_owned(), json!("ernie4_5"));
        config.insert("head_dim".to_owned(), Value::Null);
    });
    assert_eq!(dense, mixture);
    let biased = values(|config| {
        config.retain(|key, _| !key.starts_with("moe_") && key != "router_aux_loss_coef");
        config.insert("model_type".to_owned(), json!("ernie4_5"));
        config.insert("use_bias".to_owned(), json!(true));
    });
    let names: Vec<_> = biased.0.iter().map(|tensor| tensor.name.as_str()).collect();
    let of_layer = ["self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"];
    assert!(
        of_layer.iter().all(|part| names.contains(&&*format!("model.layers.1.{part}.bias"))),
        "{names:?}"
    );
    assert!(biased.0.iter().any(|tensor| tensor.shape == [4 * 128, 48]), "{names:?}");
}

/// Hunyuan's `alpha` makes the base of the rotary frequencies larger.
#[test]
fn alpha_is_part_of_the_base() {
    let directory = tempfile::tempdir().unwrap();
    copy_of("families/hunyuan", directory.path(), |config| {
        config["rope_parameters"] = json!({"rope_type": "dynamic", "alpha": 1000.0, "rope_theta": 10000.0});
    });
    let text = config(directory.path()).unwrap().to_toml();
    let theta = 10000.0 * 1000.0_f64.powf(24.0 / 22.0);
    let written = text.lines().find_map(|line| line.strip_prefix("rope_theta = ")).unwrap();
    assert!((written.parse::<f64>().unwrap() / theta - 1.0).abs() < 1e-12, "{written}");
}

/// Both spellings, `rope_theta`, `rope_scaling`, `torch_dtype` and `rope_parameters`, `dtype`, have the same
/// meaning.
#[test]
fn both_dialects_mean_the_same() {
    let values = |name: &str, change: fn(&mut Value)| {
        let directory = tempfile::tempdir().unwrap();
        copy_of(name, directory.path(), change);
        let values = config(directory.path()).unwrap().model.values();
        assert!(open(directory.path()).is_ok());
        values
    };
    let newer = |config: &mut Value| {
        let object = config.as_object_mut().unwrap();
        let theta = object.remove("rope_theta").unwrap();
        let mut rope = object.remove("rope_scaling").unwrap_or(json!({ "rope_type": "default" }));
        rope["rope_theta"] = theta;
        object.insert("rope_parameters".to_owned(), rope);
        let dtype = object.remove("torch_dtype").unwrap();
        object.insert("dtype".to_owned(), dtype);
    };
    for name in ["llama", "qwen2"] {
        assert_eq!(values(name, |_| {}), values(name, newer), "{name}");
    }
    let older = |config: &mut Value| {
        let object = config.as_object_mut().unwrap();
        let rope = object.remove("rope_parameters").unwrap();
        object.insert("rope_theta".to_owned(), rope["rope_theta"].clone());
        object.insert("rope_scaling".to_owned(), Value::Null);
    };
    assert_eq!(values("qwen3", |_| {}), values("qwen3", older));
}

/// Settings of a scaled rotary embedding as in Llama 3, plus one key.
fn llama3_with(key: &str, value: Value) -> Value {
    let mut object = llama3();
    object[key] = value;
    object
}

fn llama3() -> Value {
    json!({
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    })
}

/// Settings of two types of layers.
fn nested() -> Value {
    json!({
        "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
    })
}

/// Returns the keys of `[model]` for a recorded folder whose rotary settings are replaced by `settings`.
fn rotary_values(name: &str, settings: &Value) -> Result<impl PartialEq + std::fmt::Debug + use<>, String> {
    let directory = tempfile::tempdir().unwrap();
    copy_of(name, directory.path(), |config| {
        let config = config.as_object_mut().unwrap();
        config.retain(|key, _| !key.starts_with("rope_"));
        config.extend(settings.as_object().unwrap().clone());
    });
    config(directory.path()).map(|config| config.model.values())
}

/// Asserts that each of the rotary settings is refused with its text.
fn assert_refused(name: &str, table: &[(Value, &str)]) {
    for (settings, expected) in table {
        let refused = rotary_values(name, settings).unwrap_err();
        assert!(refused.contains(expected), "{settings}: {refused}");
    }
}

/// `rope_theta` within `rope_scaling` is used, as in transformers.
#[test]
fn rotary_settings_may_stand_in_either_object() {
    let theta = json!(500_000.0);
    let plain = rotary_values("llama", &json!({"rope_theta": theta, "rope_scaling": llama3()})).unwrap();
    for settings in [
        json!({"rope_scaling": llama3_with("rope_theta", theta.clone())}),
        json!({"rope_parameters": llama3_with("rope_theta", theta.clone())}),
        json!({"rope_theta": 500_000, "rope_scaling": llama3_with("rope_theta", theta.clone())}),
        json!({"rope_scaling": llama3_with("rope_theta", theta.clone()), "rope_parameters": {}}),
        json!({"rope_theta": theta, "rope_scaling": llama3(), "rope_parameters": llama3_with("rope_theta", theta.clone())}),
        json!({"rope_theta": theta, "rope_scaling": llama3_with("type", json!("llama3"))}),
        json!({"rope_theta": theta, "rope_scaling": llama3_with("finetuned", json!(true))}),
    ] {
        assert_eq!(rotary_values("llama", &settings).unwrap(), plain, "{settings}");
    }
}

/// Contradictory rotary settings are refused.
#[test]
fn rotary_settings_that_disagree_are_refused() {
    let theta = json!(500_000.0);
    let table = [
        (
            json!({"rope_theta": 10_000.0, "rope_scaling": llama3_with("rope_theta", theta.clone())}),
            "rope_theta = 10000.0 and rope_theta = 500000.0 of rope_scaling differ",
        ),
        (
            json!({"rope_theta": 10_000.0, "rope_parameters": llama3_with("rope_theta", theta.clone())}),
            "of rope_parameters differ",
        ),
        (
            json!({"rope_theta": theta, "rope_scaling": llama3(), "rope_parameters": {"rope_type": "default"}}),
            "rope_parameters and rope_scaling have other values of rope_type",
        ),
        (
            json!({"rope_theta": theta, "rope_scaling": llama3(), "rope_parameters": llama3_with("factor", json!(8.0))}),
            "rope_parameters and rope_scaling have other values of factor",
        ),
        (
            json!({"rope_scaling": llama3(), "rope_parameters": llama3_with("rope_theta", theta.clone())}),
            "rope_parameters and rope_scaling have other values of rope_theta",
        ),
        (
            json!({"rope_scaling": llama3_with("type", json!("linear"))}),
            "rope_scaling has rope_type = \"llama3\" and \"linear\"",
        ),
        (
            json!({"rope_parameters": {"full_attention": llama3()}}),
            "rope_parameters by type of layer is not supported",
        ),
        (
            json!({"rope_scaling": llama3_with("mrope_section", json!([16, 24]))}),
            "\"mrope_section\" = [16,24] is not known",
        ),
    ];
    assert_refused("llama", &table);
}

#[test]
fn rotary_settings_may_be_by_type_of_layer() {
    let plain = rotary_values("families/gemma3", &json!({"rope_parameters": nested()})).unwrap();
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    for settings in [
        json!({"rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "rope_scaling": linear}),
        json!({"rope_local_base_freq": 1e4, "rope_scaling": {"type": "linear", "factor": 8, "rope_theta": 1_000_000}}),
        json!({"rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "rope_parameters": nested()}),
    ] {
        assert_eq!(rotary_values("families/gemma3", &settings).unwrap(), plain, "{settings}");
    }
    let table = [
        (json!({"rope_theta": 5e5, "rope_parameters": nested()}), "of full_attention differ"),
        (json!({"rope_local_base_freq": 5e5, "rope_parameters": nested()}), "of sliding_attention differ"),
        (
            json!({"rope_parameters": nested(), "rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}}),
            "full_attention and rope_scaling have other values of factor",
        ),
        (
            json!({"rope_parameters": linear}),
            "rope_parameters has rope_type, and this model has them by type",
        ),
        (json!({"rope_scaling": nested()}), "rope_scaling by type of layer is not supported"),
    ];
    assert_refused("families/gemma3", &table);
}
