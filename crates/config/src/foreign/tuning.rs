//! Adapters and preferences.

use keys::ForeignName;

const BASE: &str = "use lora.base = \"nf4\", \"int4\" or \"fp8\", beside adapters";
const ALWAYS: &str = "leave it out: adapters are always those of a language model in training";
const REFERENCE: &str = "leave it out: data.kind = \"preference\" computes the scores of all answers once, by \
                         the model from which the run starts";
const ADAPTERS: &str = "use lora.rank, which is above 0 for adapters, and lora.base for those beside a base in \
                        4 bits";
const ALONE: &str = "adapters alone are trained with [lora]; whole layers are not saved beside them";
const ONE_DPO: &str = "leave it out: preference.loss is \"dpo\" with the reverse KL divergence, \"ipo\" or \
                       \"orpo\"";

pub(super) const NAMES: &[ForeignName] = &[
    ("lora.r", "lora.rank"),
    ("lora_r", "lora.rank"),
    ("lora_rank", "lora.rank"),
    ("r", "lora.rank"),
    ("lora_alpha", "lora.alpha"),
    ("lora_dropout", "lora.dropout"),
    ("target_modules", "lora.targets"),
    ("lora_target", "lora.targets"),
    ("lora_target_modules", "lora.targets"),
    ("lora_target_linear", "use lora.targets = \"all-linear\""),
    ("layers_to_transform", "use globs in lora.targets, such as \"model.layers.[01].*\""),
    ("lora_layers_to_transform", "use globs in lora.targets, such as \"model.layers.[01].*\""),
    ("lora_model_dir", "lora.from"),
    ("adapter_name_or_path", "lora.from"),
    ("adapter", ADAPTERS),
    ("use_peft", ADAPTERS),
    ("use_lora", ADAPTERS),
    ("finetuning_type", "use lora.rank for adapters, or train.freeze for frozen layers"),
    ("unfrozen_parameters", "use train.freeze, the globs of the others"),
    ("freeze_trainable_layers", "use train.freeze, the globs of the others"),
    ("full_finetuning", "leave it out: without lora.rank all parameters are trained"),
    ("use_rslora", "use lora.alpha = alpha × √rank, which is the same factor"),
    ("use_dora", "leave it out: DoRA is not built"),
    ("init_lora_weights", "leave it out: A is drawn as in PEFT's default, and B is zero"),
    ("loftq_config", "leave it out: A is drawn as in PEFT's default, and B is zero"),
    ("peft_init_lora_weights", "leave it out: A is drawn as in PEFT's default, and B is zero"),
    ("loraplus_lr_ratio", "lora.b_learning_rate"),
    ("loraplus_lr_embedding", "leave it out: adapters of embeddings are not built"),
    ("rpo_alpha", "use preference.loss = \"orpo\", whose loss has the likelihood of answers too"),
    ("lora_fan_in_fan_out", "leave it out: it follows from the model"),
    ("load_in_4bit", BASE),
    ("load_in_8bit", BASE),
    ("quantization_bit", BASE),
    ("quantize_base", BASE),
    ("bnb_4bit_quant_type", "lora.base"),
    ("bnb_4bit_use_double_quant", "leave it out: scales of lora.base are always quantised"),
    ("use_bnb_nested_quant", "leave it out: scales of lora.base are always quantised"),
    ("bnb_4bit_compute_dtype", "precision.compute"),
    ("modules_to_save", ALONE),
    ("lora_modules_to_save", ALONE),
    ("additional_target", ALONE),
    ("task_type", ALWAYS),
    ("inference_mode", ALWAYS),
    ("loss_type", "preference.loss"),
    ("pref_loss", "preference.loss"),
    ("rl", "preference.loss"),
    ("dpo_beta", "preference.beta"),
    ("pref_beta", "preference.beta"),
    ("rl_beta", "preference.beta"),
    ("dpo_label_smoothing", "preference.label_smoothing"),
    ("orpo_alpha", "preference.lambda"),
    (
        "disable_dropout",
        "leave it out: preferences are trained without a folder's dropout; model.dropout sets one",
    ),
    ("f_divergence_type", ONE_DPO),
    ("ld_alpha", ONE_DPO),
    ("loss_weights", ONE_DPO),
    ("use_weighting", ONE_DPO),
    ("reference_free", ONE_DPO),
    ("precompute_ref_log_probs", REFERENCE),
    ("precompute_ref_batch_size", REFERENCE),
    ("sync_ref_model", REFERENCE),
    ("ref_model", REFERENCE),
    ("ref_model_name_or_path", REFERENCE),
    ("[peft]", "[lora]"),
    ("[adapter]", "[lora]"),
    ("[dpo]", "[preference]"),
    ("[orpo]", "[preference]"),
    ("[rl]", "[preference]"),
];
