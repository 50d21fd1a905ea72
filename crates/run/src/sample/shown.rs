//! Texts as they come: one after the other, however many are generated at once.

use std::sync::Arc;

use super::text::{End, Text};
use crate::error::{Result, RunError};

/// A piece of what is shown.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// A text begins: its number from 0, how many there are, its seed, and its prompt.
    Begin {
        /// The number of the text.
        number: usize,
        /// The number of all texts.
        of: usize,
        /// The seed of its draws.
        seed: u64,
        /// The prompt.
        prompt: &'a str,
    },
    /// More of the text that began last.
    More(&'a str),
    /// The text that began last ends.
    End(End),
}

/// Takes the pieces.
pub type Show = Arc<dyn Fn(Piece<'_>) -> std::io::Result<()> + Send + Sync>;

/// What has been shown so far: all of the texts before one, and a part of it.
#[derive(Default)]
pub(super) struct Shown {
    text: usize,
    begun: bool,
    bytes: usize,
}

impl Shown {
    /// Shows what is new.
    pub(super) fn update(
        &mut self,
        texts: &[Text],
        show: &dyn Fn(Piece<'_>) -> std::io::Result<()>,
    ) -> Result<()> {
        let failed = |source| RunError::File { path: "standard output".into(), source };
        while let Some(text) = texts.get(self.text) {
            if !self.begun {
                let (number, of) = (self.text, texts.len());
                let (seed, prompt) = (text.prompt.seed, &*text.prompt.text);
                show(Piece::Begin { number, of, seed, prompt }).map_err(failed)?;
                self.begun = true;
            }
            let more = &text.certain()[self.bytes..];
            if !more.is_empty() {
                show(Piece::More(more)).map_err(failed)?;
                self.bytes += more.len();
            }
            let Some(end) = text.end() else { break };
            show(Piece::End(end)).map_err(failed)?;
            *self = Shown { text: self.text + 1, begun: false, bytes: 0 };
        }
        Ok(())
    }
}
