//! Shows texts in the order of their prompts, even if several are generated at once.

use std::sync::Arc;

use super::text::{End, Text};
use run::{Result, RunError};

/// An event of text generation, in the order of output.
#[derive(Clone, Copy, Debug)]
pub enum TextEvent<'a> {
    /// A text begins.
    Begin {
        /// Index of the text.
        number: usize,
        /// Number of all texts.
        texts: usize,
        /// Seed of its draws.
        seed: u64,
        /// Index of the conversation turn.
        turn: usize,
        /// The prompt, as text.
        prompt: &'a str,
    },
    /// The current text continues.
    More(&'a str),
    /// The current text ended, for this reason.
    End(End),
}

/// A function that receives the events.
pub type Show = Arc<dyn Fn(TextEvent<'_>) -> std::io::Result<()> + Send + Sync>;

/// Position of the output: index of the current text, and how much of it has been shown.
#[derive(Default)]
pub(super) struct Shown {
    text: usize,
    begun: bool,
    bytes: usize,
}

impl Shown {
    /// Shows everything new.
    pub(super) fn update(
        &mut self,
        texts: &[Text],
        show: &dyn Fn(TextEvent<'_>) -> std::io::Result<()>,
    ) -> Result<()> {
        let failed = |source| RunError::File { path: "standard output".into(), source };
        while let Some(text) = texts.get(self.text) {
            if !self.begun {
                let number = self.text;
                let count = texts.len();
                let seed = text.prompt.seed;
                let turn = text.prompt.turn;
                let prompt = &*text.prompt.text;
                show(TextEvent::Begin { number, texts: count, seed, turn, prompt }).map_err(failed)?;
                self.begun = true;
            }
            let more = &text.certain()[self.bytes..];
            if !more.is_empty() {
                show(TextEvent::More(more)).map_err(failed)?;
                self.bytes += more.len();
            }
            let Some(end) = text.end() else { break };
            show(TextEvent::End(end)).map_err(failed)?;
            *self = Shown { text: self.text + 1, begun: false, bytes: 0 };
        }
        Ok(())
    }
}
