//! Options of sampling.

use std::path::PathBuf;

use tensor::ops::choose::Choice;
use worker::DeviceChoice;

use super::messages::Messages;
use crate::location::Location;
use run::{Result, RunError};

/// The default temperature, which sharpens probabilities a little.
pub(super) const TEMPERATURE: f64 = 0.8;

/// Options of sampling from a trained model.
#[derive(Clone, Debug)]
pub struct SampleOptions {
    /// A run, a checkpoint, a folder of Hugging Face, or one of adapters.
    pub model: PathBuf,
    /// The folder of the model that adapters belong to; `None`: the one that they name.
    pub base: Option<PathBuf>,
    /// The step of a run's checkpoint; `None`: the newest.
    pub step: Option<u64>,
    /// The prompts.
    pub prompts: Vec<String>,
    /// A file with a prompt on each line, after `prompts`.
    pub prompt_file: Option<PathBuf>,
    /// Whether prompts are messages of a user, which the model's chat template surrounds and whose answers
    /// end as it says.
    pub chat: bool,
    /// With `chat`, the first message of every conversation without one of its own, by the system.
    pub system: Option<String>,
    /// With `chat`, further messages of the user to every conversation, each after an answer.
    pub turns: Vec<String>,
    /// With `chat`, files of conversations whose last message is to be answered.
    pub conversations: Vec<PathBuf>,
    /// With `chat` and without other messages, those of one conversation, read as it goes on.
    pub messages: Option<Messages>,
    /// Prompts as tokens, after all texts: those of a model without a tokenizer.
    pub prompt_tokens: Vec<Vec<u32>>,
    /// Number of tokens to add to each, at most.
    pub tokens: usize,
    /// Divisor of the logits; 0: always the likeliest token.
    pub temperature: f64,
    /// Only this many of the likeliest tokens are drawn; 0: all.
    pub top_k: u32,
    /// Only the likeliest tokens are drawn that together have this probability; 1: all.
    pub top_p: f64,
    /// Divisor of the positive logits, and factor of the others, of tokens that a text has; 1: none.
    pub repetition_penalty: f64,
    /// Seeds of the prompts. A prompt without one has the last one's and 1 more for each prompt after it;
    /// empty: the run's own and so on.
    pub seeds: Vec<u64>,
    /// Texts that end a text, which are not part of it.
    pub stop: Vec<String>,
    /// Prompts at once on each replica of the model, at most as many as a step computes anyway; `None`: as
    /// many. The others follow.
    pub batch: Option<usize>,
    /// Settings over the model's configuration, each as `section.key=value`.
    pub sets: Vec<String>,
    /// The device.
    pub device: DeviceChoice,
    /// Number of ranks as threads; must equal the configured number, which is the default.
    pub ranks: Option<usize>,
    /// Whether memory is planned only.
    pub plan_only: bool,
}

impl Default for SampleOptions {
    fn default() -> Self {
        SampleOptions {
            model: PathBuf::new(),
            base: None,
            step: None,
            prompts: Vec::new(),
            prompt_file: None,
            chat: false,
            system: None,
            turns: Vec::new(),
            conversations: Vec::new(),
            messages: None,
            prompt_tokens: Vec::new(),
            tokens: 320,
            temperature: TEMPERATURE,
            top_k: 0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            seeds: Vec::new(),
            stop: Vec::new(),
            batch: None,
            sets: Vec::new(),
            device: DeviceChoice::Auto,
            ranks: None,
            plan_only: false,
        }
    }
}

impl SampleOptions {
    /// The path of the model.
    pub(crate) fn location(&self) -> Location<'_> {
        Location { path: &self.model, step: self.step, base: self.base.as_deref() }
    }

    /// Returns whether there are texts to encode.
    pub(super) fn needs_tokenizer(&self) -> bool {
        !self.conversations.is_empty()
            || !self.prompts.is_empty()
            || self.prompt_file.is_some()
            || self.prompt_tokens.is_empty()
    }

    /// The choice of tokens.
    ///
    /// # Errors
    /// A number that makes no sense, by the name of its option.
    pub(super) fn choice(&self) -> Result<Choice> {
        let SampleOptions { temperature, top_p, repetition_penalty, .. } = *self;
        let rows = [
            ("--temperature", temperature, temperature >= 0.0, "a finite number, 0 or more"),
            ("--top-p", top_p, top_p > 0.0 && top_p <= 1.0, "more than 0 and at most 1"),
            ("--repetition-penalty", repetition_penalty, repetition_penalty > 0.0, "finite and more than 0"),
        ];
        if let Some((name, value, _, range)) =
            rows.iter().find(|(_, value, fits, _)| !(value.is_finite() && *fits))
        {
            return Err(RunError::Refused(format!("{name} {value}: it is {range}")));
        }
        Ok(Choice {
            temperature: temperature as f32,
            top_k: self.top_k,
            top_p: top_p as f32,
            repetition_penalty: repetition_penalty as f32,
        })
    }
}
