//! Names of models on Hugging Face's hub, from which nothing is downloaded.

use std::path::Path;

/// Models that are known without the name of their owner, with the owner.
const WITHOUT_OWNER: &[(&str, &str)] = &[
    ("gpt2", "openai-community"),
    ("gpt2-medium", "openai-community"),
    ("gpt2-large", "openai-community"),
    ("gpt2-xl", "openai-community"),
    ("distilgpt2", "distilbert"),
];

/// The most bytes of a model's name, with its owner.
const MOST_BYTES: usize = 200;

/// Returns how to download the model that `name` may mean on Hugging Face's hub, as `meta-llama/Llama-3.2-1B`
/// does; `None` if a file or folder has this name, a folder that of its owner, or no model can have it.
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
