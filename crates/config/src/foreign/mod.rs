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
