//! Names of configuration keys in other trainers: nanoGPT, Hugging Face's Trainer, TRL, PEFT, axolotl,
//! LLaMA-Factory, unsloth, DeepSpeed, torchtitan, Megatron-LM and Lightning.
//!
//! Each name is paired with the equivalent key or section. If there is none, or its values mean something
//! else, it is paired with a sentence of advice. A name is that of a key, with its section if the meaning
//! depends on it; a name in brackets is that of a section.

mod data;
mod length;
mod model;
mod optim;
mod output;
mod parallel;
mod tuning;

use keys::ForeignName;

/// All names, grouped by subject.
pub(crate) const FOREIGN: &[&[ForeignName]] =
    &[length::NAMES, optim::NAMES, model::NAMES, data::NAMES, parallel::NAMES, tuning::NAMES, output::NAMES];

/// Returns the equivalent of a key of another trainer: the key here, or a sentence with advice. A name with
/// its section, as in `optimizer.type`, is also found without it.
///
/// ```
/// assert_eq!(config::foreign_key("lora_r"), Some("lora.rank"));
/// assert!(config::foreign_key("flash_attention").unwrap().starts_with("leave it out: "));
/// assert_eq!(config::foreign_key("keel"), None);
/// ```
#[must_use]
pub fn foreign_key(name: &str) -> Option<&'static str> {
    let find = |name: &str| FOREIGN.iter().copied().flatten().find(|(foreign, _)| *foreign == name);
    let last = || name.rsplit_once('.').and_then(|(_, last)| find(last));
    find(name).or_else(last).map(|(_, here)| *here)
}
