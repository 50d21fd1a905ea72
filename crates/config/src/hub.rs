//! Recognises names of models on Hugging Face's hub. Nothing is downloaded.

use std::path::Path;

/// Models commonly named without their owner, with the owner.
const WITHOUT_OWNER: &[(&str, &str)] = &[
    ("gpt2", "openai-community"),
    ("gpt2-medium", "openai-community"),
    ("gpt2-large", "openai-community"),
    ("gpt2-xl", "openai-community"),
    ("distilgpt2", "distilbert"),
];

/// Maximum length of a model's name with its owner, in bytes.
const MOST_BYTES: usize = 200;

/// Returns how to download the model called `name`, such as `meta-llama/Llama-3.2-1B`, from Hugging Face's
/// hub. `None` if no model can have this name, if a file or folder has it, or if a folder is named like the
/// model's owner.
///
/// ```
/// let advice = config::how_to_download("meta-llama/Llama-3.2-1B").unwrap();
/// assert!(advice.contains("`hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B`"));
/// assert_eq!(config::how_to_download("../Llama-3.2-1B"), None);
/// ```
#[must_use]
pub fn how_to_download(name: &str) -> Option<String> {
    let is_part = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
    };
    let entry = || WITHOUT_OWNER.iter().find(|(model, _)| *model == name);
    let (owner, model) = name.split_once('/').or_else(|| entry().map(|(model, owner)| (*owner, *model)))?;
    let is_name = is_part(owner) && is_part(model) && !model.ends_with(".json");
    let is_name = is_name && name.len() <= MOST_BYTES;
    let is_here = Path::new(name).exists() || Path::new(owner).is_dir();
    (is_name && !is_here).then(|| {
        format!(
            "if it is a model on Hugging Face's hub, `hf download {owner}/{model} --local-dir {model}` makes \
             the folder {model}, which can be named here"
        )
    })
}
