//! PEFT's format of low-rank adapters: `adapter_config.json`, and the names of the matrices.

use serde_json::{Map, Value, json};
use system::readers::{FileKey, Reader, Unlisted};

use super::{FolderConfig, FolderTensor, HuggingFaceModel};
use super::{peft_patterns, peft_targets};
use crate::lora::Lora;
use crate::lora_terms::LoraScaling;

/// Prefix of the matrices' names.
const PREFIX: &str = "base_model.model.";
/// PEFT's default of `r` and `lora_alpha`.
const DEFAULT: usize = 8;

/// Advice for an adapter that was trained on a modified base model.
const CHANGED_BASE: &str = "the adapter belongs to a base whose weights PEFT changes before training: convert \
    it with `save_pretrained(…, path_initial_model_for_weight_conversion=…)` of PEFT, or merge it there";
const OTHER_FORWARD: &str = "it changes what an adapter computes";
const MORE_PARAMETERS: &str = "it trains parameters beside the matrices of adapters";

/// The keys of an `adapter_config.json` as of PEFT 0.21.
pub(crate) const ADAPTER: Reader = Reader {
    of: "`adapter_config.json` of a PEFT folder",
    keys: &[
        FileKey::refused(&["peft_type"], &["\"LORA\""], "only \"LORA\" is built"),
        FileKey::known(&["r"], "the rank; 8 if it is absent"),
        FileKey::known(&["lora_alpha"], "numerator of the factor; 8 if it is absent"),
        FileKey::known(&["use_rslora"], "the factor is `lora_alpha` / √`r` instead of `lora_alpha` / `r`"),
        FileKey::known(&["lora_dropout"], "probability of dropout"),
        FileKey::known(
            &["target_modules"],
            "a list of names or their ends, or a text: `all-linear`, or a regular expression of all of a name",
        ),
        FileKey::known(&["exclude_modules"], "a list of names or their ends, or a regular expression"),
        FileKey::known(&["layers_to_transform", "layers_pattern"], "the layers with adapters, by number"),
        FileKey::known(&["base_model_name_or_path"], "the folder of the model"),
        FileKey::refused(
            &["init_lora_weights"],
            &["true", "false", "\"gaussian\"", "\"orthogonal\"", "\"eva\""],
            CHANGED_BASE,
        ),
        FileKey::refused(&["bias"], &["\"none\""], MORE_PARAMETERS),
        FileKey::refused(&["lora_bias"], &["false"], MORE_PARAMETERS),
        FileKey::known(&["modules_to_save"], "ends of the names of modules that are trained wholly"),
        FileKey::refused(&["trainable_token_indices"], &["[]", "{}"], MORE_PARAMETERS),
        FileKey::refused(
            &["target_parameters"],
            &["[]"],
            "adapters of parameters without a module are not built",
        ),
        FileKey::known(
            &["rank_pattern", "alpha_pattern"],
            "`r` and `lora_alpha` of single modules, by regular expressions of the ends of their names",
        ),
        FileKey::refused(&["layer_replication"], &["[]"], "it builds a model of repeated layers"),
        FileKey::refused(&["use_dora", "use_qalora"], &["false"], OTHER_FORWARD),
        FileKey::refused(
            &["alora_invocation_tokens"],
            &[],
            "the adapter is off before these tokens, which is not built",
        ),
        FileKey::refused(
            &["monteclora_config", "use_bdlora", "arrow_config", "kasa_config"],
            &["false"],
            OTHER_FORWARD,
        ),
        FileKey::ignored(
            &["loftq_config", "eva_config", "corda_config", "lora_ga_config"],
            "`init_lora_weights` says whether it was used",
        ),
        FileKey::ignored(&["fan_in_fan_out"], "it follows from the model"),
        FileKey::ignored(&["velora_config"], "it saves memory of PEFT's backward pass"),
        FileKey::ignored(&["qalora_group_size"], "it belongs to `use_qalora`"),
        FileKey::ignored(&["ensure_weight_tying"], "it belongs to `modules_to_save` and embeddings"),
        FileKey::ignored(&["megatron_config", "megatron_core"], "they name Megatron's classes"),
        FileKey::ignored(
            &["task_type", "inference_mode", "runtime_config", "auto_mapping", "peft_version", "revision"],
            "they say how PEFT uses the folder",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::RefusedIfSet,
};

/// The adapter settings in an `adapter_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// Rank of the adapters.
    pub r: usize,
    /// Numerator of the scaling factor.
    pub alpha: f64,
    /// Formula of the scaling factor.
    pub scaling: LoraScaling,
    /// Ranks of individual modules, in the format of `lora.rank_pattern`.
    pub rank_pattern: Vec<String>,
    /// Numerators of individual modules, in the format of `lora.alpha_pattern`.
    pub alpha_pattern: Vec<String>,
    /// Dropout probability.
    pub dropout: f64,
    /// Modules with adapters, in the format of `lora.targets`.
    pub targets: Vec<String>,
    /// Modules that are fully trained, in the format of `lora.train_also`.
    pub train_also: Vec<String>,
    /// The base model: a folder, or a name on Hugging Face's hub.
    pub base: Option<String>,
}

impl AdapterConfig {
    /// Parses the text of an `adapter_config.json`.
    ///
    /// # Errors
    /// The text is invalid, or the adapters are of an unsupported kind.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config = FolderConfig::parse(text)?;
        if config.value("peft_type").is_none() {
            return Err("it has no peft_type".to_owned());
        }
        config.check(&ADAPTER)?;
        let r = config.optional_count("r")?.unwrap_or(DEFAULT);
        let alpha = config.number("lora_alpha")?.unwrap_or(DEFAULT as f64);
        let is_stabilised = config.flag("use_rslora")?.unwrap_or(false);
        Ok(AdapterConfig {
            r,
            alpha,
            scaling: if is_stabilised { LoraScaling::Stabilised } else { LoraScaling::Rank },
            rank_pattern: peft_patterns::read(&config, "rank_pattern")?,
            alpha_pattern: peft_patterns::read(&config, "alpha_pattern")?,
            dropout: config.number("lora_dropout")?.unwrap_or(0.0),
            targets: peft_targets::read(&config)?,
            // PEFT accepts any suffix of a name.
            train_also: config
                .texts("modules_to_save")?
                .unwrap_or_default()
                .into_iter()
                .map(any_end)
                .collect(),
            base: config.text("base_model_name_or_path")?.map(str::to_owned),
        })
    }
}

impl Lora {
    /// Describes the adapters as a PEFT folder. `tensors` are their matrices, and `base` is the folder of the
    /// base model. `is_transposed`: the base stores linear layers as `[inputs, outputs]`.
    #[must_use]
    pub fn folder(
        &self,
        tensors: &[FolderTensor],
        base: Option<&str>,
        is_transposed: bool,
    ) -> HuggingFaceModel {
        let modules = adapted(tensors);
        let settings = [
            ("base_model_name_or_path", json!(base)),
            ("bias", json!("none")),
            ("fan_in_fan_out", json!(is_transposed)),
            ("inference_mode", json!(true)),
            ("init_lora_weights", json!(true)),
            ("lora_alpha", number(self.alpha)),
            ("lora_dropout", json!(self.dropout)),
            ("modules_to_save", json!(Some(self.saved.modules()).filter(|modules| !modules.is_empty()))),
            ("peft_type", json!("LORA")),
            ("r", json!(self.r)),
            ("target_modules", modules.collect()),
            ("task_type", json!("CAUSAL_LM")),
            ("use_dora", json!(false)),
            ("use_rslora", json!(self.scaling == LoraScaling::Stabilised)),
        ];
        let settings = settings.into_iter().chain(self.patterns(tensors));
        let named = |tensor: &FolderTensor| FolderTensor {
            name: format!("{PREFIX}{}", tensor.name),
            ..tensor.clone()
        };
        HuggingFaceModel {
            config: settings.map(|(key, value)| (key.to_owned(), value)).collect(),
            prefix: PREFIX,
            tensors: tensors.iter().chain(self.saved.tensors()).map(named).collect(),
            variants: Vec::new(),
            copies: Vec::new(),
            tables: Vec::new(),
            ignored: Vec::new(),
            is_part: false,
            unused: Vec::new(),
            unused_modules: Vec::new(),
            modules: Vec::new(),
            module_counts: &[],
        }
    }

    /// Returns `rank_pattern` and `alpha_pattern`: the rank and alpha of each module that differ from the
    /// defaults.
    fn patterns(&self, tensors: &[FolderTensor]) -> impl Iterator<Item = (&'static str, Value)> {
        let r = |module: &str| Some(self.rank_of(module)).filter(|r| *r != self.r).map(Value::from);
        let alpha =
            |module: &str| Some(self.alpha_of(module)).filter(|alpha| *alpha != self.alpha).map(number);
        let patterns = [
            ("rank_pattern", peft_patterns::written(adapted(tensors), r)),
            ("alpha_pattern", peft_patterns::written(adapted(tensors), alpha)),
        ];
        let is_set = |(_, values): &(_, Map<_, _>)| !values.is_empty();
        patterns.into_iter().filter(is_set).map(|(key, values)| (key, values.into()))
    }
}

/// Returns a glob that matches all names ending with `end`.
fn any_end(end: &str) -> String {
    format!("*{}", glob::Pattern::escape(end))
}

/// Returns the names of the modules that have adapters, from the adapters' `tensors`.
fn adapted(tensors: &[FolderTensor]) -> impl Iterator<Item = &str> {
    tensors.iter().filter_map(|tensor| tensor.name.strip_suffix(".lora_A.weight"))
}

/// Formats a whole number without a decimal point, as PEFT writes it.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{AdapterConfig, Lora, LoraScaling};
    use crate::FolderTensor;

    fn parse(key: &str, value: Value) -> Result<AdapterConfig, String> {
        let mut config = json!({
            "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none",
            "rank_pattern": {}, "init_lora_weights": true, "loftq_config": {}, "megatron_core": "megatron.core",
        });
        config.as_object_mut().unwrap().insert(key.to_owned(), value);
        AdapterConfig::parse(&config.to_string())
    }

    #[test]
    fn settings_that_change_the_result_are_refused_by_name() {
        for (key, value) in [
            ("peft_type", json!("LOHA")),
            ("init_lora_weights", json!("pissa")),
            ("init_lora_weights", json!("pissa_niter_16")),
            ("init_lora_weights", json!("olora")),
            ("init_lora_weights", json!("corda")),
            ("init_lora_weights", json!("loftq")),
            ("init_lora_weights", json!("lora_ga")),
            ("init_lora_weights", json!("mica")),
            ("bias", json!("all")),
            ("lora_bias", json!(true)),
            ("trainable_token_indices", json!([5])),
            ("target_parameters", json!(["mlp.experts.gate_up_proj"])),
            ("layer_replication", json!([[0, 2], [1, 2]])),
            ("use_dora", json!(true)),
            ("use_qalora", json!(true)),
            ("alora_invocation_tokens", json!([300, 301])),
            ("kasa_config", json!({"beta": 1e-4})),
            ("a_later_version_has_it", json!({"x": 1})),
        ] {
            let refused = parse(key, value.clone()).unwrap_err();
            assert!(refused.starts_with(&format!("\"{key}\" = {value} is not")), "{refused}");
        }
        let long = parse("target_modules", json!(vec!["model.layers.0.self_attn.q_proj"; 999])).unwrap();
        assert_eq!(long.targets.len(), 999);
        let mut mixed = vec![json!("model.layers.0.self_attn.q_proj"); 999];
        mixed.push(json!(7));
        assert!(parse("target_modules", json!(mixed)).unwrap_err().len() < 300);
    }

    #[test]
    fn factors_and_defaults_are_those_of_peft() {
        for (key, value, alpha) in [
            ("use_rslora", json!(false), 8.0),
            ("use_rslora", json!(true), 8.0),
            ("lora_alpha", json!(null), 8.0),
            ("lora_alpha", json!(2.5), 2.5),
            ("init_lora_weights", json!("eva"), 8.0),
            ("loftq_config", json!({"loftq_bits": 4}), 8.0),
            ("a_later_version_has_it", json!(null), 8.0),
        ] {
            assert_eq!(parse(key, value.clone()).unwrap().alpha, alpha, "{key} = {value}");
        }
        assert_eq!(parse("r", json!(null)).unwrap().r, 8);
        let saved = parse("modules_to_save", json!(["norm", "lm_head"])).unwrap();
        assert_eq!(saved.train_also, ["*norm", "*lm_head"]);
        for (value, scaling) in [(json!(true), LoraScaling::Stabilised), (json!(null), LoraScaling::Rank)] {
            assert_eq!(parse("use_rslora", value).unwrap().scaling, scaling);
        }
        assert_eq!(AdapterConfig::parse("{}").unwrap_err(), "it has no peft_type");
    }

    #[test]
    fn names_of_patterns_are_regular_expressions_of_ends() {
        for (key, texts) in [
            ("q_proj", "q_proj=16"),
            ("layers.1.mlp.up_proj", "layers.1.mlp.up_proj=16"),
            (r"layers\.[01]\..*", r"regex:(?:.*\.)?(?:layers\.[01]\..*)=16"),
            (r"^model.*\Z", r"regex:(?:.*\.)?(?:^model.*\z)=16"),
        ] {
            let config = parse("rank_pattern", json!({ key: 16 })).unwrap();
            assert_eq!((config.rank_pattern, config.alpha_pattern), (vec![texts.to_owned()], vec![]));
        }
        let alphas = parse("alpha_pattern", json!({"q_proj": 2.5, "up_proj": 4})).unwrap().alpha_pattern;
        assert_eq!(alphas, ["q_proj=2.5", "up_proj=4"]);
        for (value, expected) in [
            (json!({"q_proj": "8"}), "rank_pattern has no number for \"q_proj\""),
            (json!({"(q_proj": 8}), "\"(q_proj\" is no regular expression"),
            (json!([8]), "rank_pattern = [8] is not an object"),
        ] {
            let refused = parse("rank_pattern", value).unwrap_err();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }

    #[test]
    fn written_folders_are_read_as_the_same_adapters() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let modules = ["m.0.q_proj", "m.1.q_proj", "m.1.up_proj"];
        let tensors = modules
            .map(|module| FolderTensor::whole(format!("{module}.lora_A.weight"), String::new(), &[4, 8]));
        let lora = Lora::new(4, 8.0, 0.0, &texts(&["*_proj"]), &[]);
        let lora = lora.with_scaling(LoraScaling::Stabilised);
        let lora = lora.with_rank_pattern(&texts(&["*.1.q_*=6"])).unwrap();
        let lora = lora.with_alpha_pattern(&texts(&["up_proj=2.5"])).unwrap();
        let written = serde_json::Value::from(lora.folder(&tensors, None, false).config).to_string();
        let read = AdapterConfig::parse(&written).unwrap();
        assert_eq!((read.r, read.alpha, read.scaling), (4, 8.0, LoraScaling::Stabilised));
        assert_eq!(read.rank_pattern, ["m.1.q_proj=6"]);
        assert_eq!(read.alpha_pattern, ["m.1.up_proj=2.5"]);
    }
}
