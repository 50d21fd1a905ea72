//! Options of sampling.

use std::path::PathBuf;

use tensor::ops::choose::Choice;
use worker::DeviceChoice;

use super::messages::Messages;
use crate::location::Location;
use run::{Result, RunError};

/// Default temperature, which slightly sharpens the probabilities.
pub(super) const TEMPERATURE: f64 = 0.8;

/// Options of sampling from a trained model.
#[derive(Clone, Debug)]
pub struct SampleOptions {
    /// A run, a checkpoint, a Hugging Face folder, or a folder of adapters.
    pub model: PathBuf,
    /// Folder of the adapters' base model; `None` for the folder named by the adapters.
    pub base: Option<PathBuf>,
    /// Step of a run's checkpoint; `None` for the newest.
    pub step: Option<u64>,
    /// Whether to use the average of the weights (`train.ema`) instead of the weights.
    pub average: bool,
    /// The prompts.
    pub prompts: Vec<String>,
    /// File with one prompt per line, appended to `prompts`.
    pub prompt_file: Option<PathBuf>,
    /// Whether prompts are a user's messages. The model's chat template surrounds them and determines how
    /// answers end.
    pub chat: bool,
    /// With `chat`, a system message for every conversation that does not begin with one.
    pub system: Option<String>,
    /// With `chat`, further user messages for every conversation, each after an answer.
    pub turns: Vec<String>,
    /// With `chat`, files of conversations whose last message is to be answered.
    pub conversations: Vec<PathBuf>,
    /// With `chat` and without other messages, the messages of one conversation, read as it proceeds.
    pub messages: Option<Messages>,
    /// Prompts as tokens, appended after all texts; for a model without a tokenizer.
    pub prompt_tokens: Vec<Vec<u32>>,
    /// Maximum number of new tokens for each prompt.
    pub tokens: usize,
    /// Divisor of the logits; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Number of likeliest tokens among which to draw; 0 for all.
    pub top_k: u32,
    /// Total probability of the likeliest tokens among which to draw; 1 for all.
    pub top_p: f64,
    /// Divisor of positive logits and factor of negative logits for tokens already in the text; 1 for no
    /// penalty.
    pub repetition_penalty: f64,
    /// Seeds of the prompts. Prompts after the last seed use the following numbers; if empty, seeds start at
    /// the run's.
    pub seeds: Vec<u64>,
    /// Strings that end a text; they are not part of it.
    pub stop: Vec<String>,
    /// Number of prompts at once on each replica, limited by the rows of a step; `None` for the maximum.
    /// Further prompts follow later.
    pub batch: Option<usize>,
    /// Overrides of the model's configuration, each as `section.key=value`.
    pub sets: Vec<String>,
    /// Device to compute on.
    pub device: DeviceChoice,
    /// Number of ranks as threads; must equal the configured number, which is the default.
    pub ranks: Option<usize>,
    /// Whether to plan memory only.
    pub plan_only: bool,
}

impl Default for SampleOptions {
    fn default() -> Self {
        SampleOptions {
            model: PathBuf::new(),
            base: None,
            step: None,
            average: false,
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
    /// Returns the location of the model.
    pub(crate) fn location(&self) -> Location<'_> {
        let base = self.base.as_deref();
        Location { path: &self.model, step: self.step, base, average: self.average }
    }

    /// Returns whether there are texts to encode.
    pub(super) fn needs_tokenizer(&self) -> bool {
        !self.conversations.is_empty()
            || !self.prompts.is_empty()
            || self.prompt_file.is_some()
            || self.prompt_tokens.is_empty()
    }

    /// Returns the rule that chooses tokens.
    ///
    /// # Errors
    /// A value is out of range; the error names its option.
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
