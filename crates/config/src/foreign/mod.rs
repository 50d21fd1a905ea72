//! Names of keys in other trainers: nanoGPT, Hugging Face's Trainer, TRL, PEFT, axolotl, LLaMA-Factory,
//! unsloth, DeepSpeed, torchtitan, Megatron-LM and Lightning.
//!
//! Each name stands with the equivalent key or section, or with a sentence about what to use instead, if a
//! value has another meaning or there is no such key. A name is a key's, with its section if its meaning
//! depends on it; in brackets it is a section's.

mod data;
mod length;
mod model;
mod optim;
mod output;
mod parallel;
mod tuning;

use keys::ForeignName;

/// All names, by subject.
pub(crate) const FOREIGN: &[&[ForeignName]] =
    &[length::NAMES, optim::NAMES, model::NAMES, data::NAMES, parallel::NAMES, tuning::NAMES, output::NAMES];

/// Returns the equivalent of a key of another trainer: the key here, or a sentence about what to use instead.
/// A name that has its section before it, as in `optimizer.type`, is found with and without it.
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
