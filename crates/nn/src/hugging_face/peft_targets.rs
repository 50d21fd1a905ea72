//! Translates the modules listed in an `adapter_config.json` to adapter targets.

use super::FolderConfig;
use crate::targets::{ALL, REGEX, Target};

/// Regular expression of modules inside a model's blocks, whose names contain a number.
const IN_A_BLOCK: &str = "(?:.*\\.)?\\d+\\..*";
/// Characters with a special meaning in regular expressions.
const SPECIAL: [char; 14] = ['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

/// Reads the targets. Excluded modules and selected layers become conditions of regular expressions.
///
/// # Errors
/// There is no target, or settings contradict each other.
pub(super) fn read(config: &FolderConfig) -> Result<Vec<String>, String> {
    let layers = layers(config)?;
    let excluded = excluded(config)?;
    if let Ok(Some(text)) = config.text("target_modules") {
        if !(config.is_empty("layers_to_transform") && config.is_empty("layers_pattern")) {
            return Err("layers_to_transform needs a list of target_modules, which is a text".to_owned());
        }
        let is_all = text.eq_ignore_ascii_case(ALL);
        let pattern = if is_all { IN_A_BLOCK.to_owned() } else { format!("(?:{})", ported(text)?) };
        return match excluded {
            None if is_all => Ok(vec![ALL.to_owned()]),
            excluded => Ok(vec![format!("{REGEX}{}{pattern}", excluded.unwrap_or_default())]),
        };
    }
    let names = config.texts("target_modules")?.unwrap_or_default();
    if names.is_empty() {
        return Err("target_modules names no module".to_owned());
    }
    let excluded = excluded.unwrap_or_default();
    let target = |name: &&str| match &layers {
        None if excluded.is_empty() => (*name).to_owned(),
        None => format!("{REGEX}{excluded}(?:.*\\.)?{}", escaped(name)),
        // A complete module name matches in any layer.
        Some(layers) => {
            let name = escaped(name);
            format!("{REGEX}{excluded}(?:{name}|{layers}.*\\.{name})")
        }
    };
    checked(names.iter().map(target).collect())
}

/// Checks the targets and returns them.
///
/// # Errors
/// A target is not a valid regular expression.
fn checked(targets: Vec<String>) -> Result<Vec<String>, String> {
    match targets.iter().find_map(|target| Target::new(target).mistake()) {
        Some(mistake) => Err(mistake),
        None => Ok(targets),
    }
}

/// Converts a Python regular expression to this program's syntax for the end of a text.
///
/// # Errors
/// The text is not a regular expression.
pub(super) fn ported(pattern: &str) -> Result<String, String> {
    let mut ported = String::new();
    let mut is_escaped = false;
    for character in pattern.chars() {
        let is_end = is_escaped && character == 'Z';
        ported.push(if is_end { 'z' } else { character });
        is_escaped = !is_escaped && character == '\\';
    }
    Target::new(&format!("{REGEX}{ported}")).mistake().map_or(Ok(ported), Err)
}

/// Returns a regular expression that matches excluded modules, if any are listed.
fn excluded(config: &FolderConfig) -> Result<Option<String>, String> {
    if config.is_empty("exclude_modules") {
        return Ok(None);
    }
    let pattern = match config.text("exclude_modules") {
        Ok(Some(text)) => ported(text)?,
        _ => {
            let names = config.texts("exclude_modules")?.unwrap_or_default();
            let names: Vec<_> = names.into_iter().map(escaped).collect();
            format!("(?:.*\\.)?(?:{})", names.join("|"))
        }
    };
    Ok(Some(format!("(?!(?:{pattern})\\z)")))
}

/// Returns a regular expression that matches modules of the selected layers, if any are listed. The layer is
/// the first number in the name, after one of the `layers_pattern` names if there are any.
fn layers(config: &FolderConfig) -> Result<Option<String>, String> {
    if config.is_empty("layers_to_transform") {
        return match config.is_empty("layers_pattern") {
            true => Ok(None),
            false => Err("layers_pattern needs layers_to_transform".to_owned()),
        };
    }
    let numbers = match config.whole("layers_to_transform") {
        Ok(number) => number.into_iter().collect(),
        Err(_) => config.counts("layers_to_transform")?.unwrap_or_default(),
    };
    let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
    let patterns = match config.text("layers_pattern") {
        Ok(text) => text.into_iter().filter(|text| !text.is_empty()).collect(),
        Err(_) => config.texts("layers_pattern")?.unwrap_or_default(),
    };
    // Any list of modules: name components that are not numbers.
    let before = match patterns.is_empty() {
        true => "(?:(?!\\d+\\.)[^.]*\\.)+".to_owned(),
        false => format!("(?:.*?\\.)?(?:{})\\.", patterns.join("|")),
    };
    Ok(Some(format!("(?={before}(?:{})\\.)", numbers.join("|"))))
}

/// Escapes a name for use in a regular expression.
fn escaped(name: &str) -> String {
    name.chars().flat_map(|c| SPECIAL.contains(&c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::hugging_face::AdapterConfig;
    use crate::targets::Target;

    const PARTS: [&str; 7] = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ];

    fn parse(settings: Value) -> Result<AdapterConfig, String> {
        let mut config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 2});
        config.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        AdapterConfig::parse(&config.to_string())
    }

    /// Compares the selected modules of three layers, by index, with the selection of PEFT 0.21.2
    /// (`check_target_module_exists`).
    #[test]
    fn modules_are_those_that_peft_chooses() {
        let modules: Vec<String> =
            (0..3).flat_map(|layer| PARTS.map(|part| format!("model.layers.{layer}.{part}"))).collect();
        for (settings, expected) in [
            (json!({"target_modules": ["q_proj"]}), &[0, 7, 14][..]),
            (json!({"target_modules": ["self_attn.q_proj", "mlp.up_proj"]}), &[0, 5, 7, 12, 14, 19][..]),
            (json!({"target_modules": ".*q_proj"}), &[0, 7, 14][..]),
            (json!({"target_modules": "q_proj"}), &[][..]),
            (
                json!({"target_modules": "model\\.layers\\.[01]\\.(self_attn|mlp)\\..*"}),
                &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13][..],
            ),
            (
                json!({"target_modules": "(?!.*layers\\.1).*_proj"}),
                &[0, 1, 2, 3, 4, 5, 6, 14, 15, 16, 17, 18, 19, 20][..],
            ),
            (
                json!({"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0, 2]}),
                &[0, 2, 14, 16][..],
            ),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": 1}), &[7][..]),
            (
                json!({"target_modules": ["q_proj"], "layers_to_transform": 0, "layers_pattern": "layers"}),
                &[0][..],
            ),
            (
                json!({"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": ["h"]}),
                &[][..],
            ),
            (
                json!({"target_modules": ["up_proj"], "layers_to_transform": [2], "layers_pattern": []}),
                &[19][..],
            ),
            (
                json!({"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["model.layers.1.self_attn.q_proj"]}),
                &[0, 5, 12, 14, 19][..],
            ),
            (
                json!({"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["q_proj"]}),
                &[5, 12, 19][..],
            ),
            (
                json!({"target_modules": ["q_proj", "up_proj"], "exclude_modules": ".*\\.2\\..*"}),
                &[0, 5, 7, 12][..],
            ),
            (
                json!({"target_modules": ".*proj", "exclude_modules": ["o_proj", "mlp.up_proj"]}),
                &[0, 1, 2, 4, 6, 7, 8, 9, 11, 13, 14, 15, 16, 18, 20][..],
            ),
            (
                json!({"target_modules": ["q_proj", "up_proj"], "exclude_modules": ".*up_proj", "layers_to_transform": [0, 1]}),
                &[0, 7][..],
            ),
            (json!({"target_modules": ".*(q|k)_proj$"}), &[0, 1, 7, 8, 14, 15][..]),
            (json!({"target_modules": "model.*\\.2\\..*[qk]_proj\\Z"}), &[14, 15][..]),
            (
                json!({"target_modules": "all-linear", "exclude_modules": ["mlp.up_proj", "q_proj", "down_proj"]}),
                &[1, 2, 3, 4, 8, 9, 10, 11, 15, 16, 17, 18][..],
            ),
            // Selected layers do not apply to a module that is named completely.
            (
                json!({"target_modules": ["model.layers.2.mlp.up_proj", "q_proj"], "layers_to_transform": [0]}),
                &[0, 19][..],
            ),
            (json!({"target_modules": ".*\\.self_attn\\.(q_proj|v_proj)$"}), &[0, 2, 7, 9, 14, 16][..]),
        ] {
            let targets = parse(settings.clone()).unwrap().targets;
            let targets: Vec<_> = targets.iter().map(|target| Target::new(target)).collect();
            let is_chosen = |index: &usize| targets.iter().any(|target| target.matches(&modules[*index]));
            let chosen: Vec<usize> = (0..modules.len()).filter(is_chosen).collect();
            assert_eq!(chosen, expected, "{settings}: {targets:?}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for (settings, expected) in [
            (
                json!({"target_modules": ".*q_proj", "layers_to_transform": [0]}),
                "needs a list of target_modules",
            ),
            (json!({"target_modules": ["q_proj"], "layers_pattern": "h"}), "needs layers_to_transform"),
            (json!({"target_modules": "(q_proj"}), "\"(q_proj\" is no regular expression: "),
            (json!({"target_modules": "(".repeat(40_000)}), "is no regular expression: "),
            (
                json!({"target_modules": ["q_proj"], "exclude_modules": "[a"}),
                "\"[a\" is no regular expression: ",
            ),
            (
                json!({"target_modules": "all-linear", "layers_to_transform": [0]}),
                "needs a list of target_modules",
            ),
            (json!({"target_modules": null}), "target_modules names no module"),
            (json!({"target_modules": []}), "target_modules names no module"),
            (json!({"target_modules": [7]}), "target_modules = [7] is not a list of strings"),
            (
                json!({"target_modules": ["q_proj"], "layers_to_transform": -1}),
                "is not a list of whole numbers",
            ),
        ] {
            let refused = parse(settings.clone()).unwrap_err();
            assert!(refused.contains(expected) && refused.len() < 500, "{refused}");
        }
    }
}
