//! Showing texts in the order of their prompts, even if several are generated at once.

use std::sync::Arc;

use super::text::{End, Text};
use run::{Result, RunError};

/// A piece of output.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// A text begins, with its number from 0, the number of texts, its seed and its prompt.
    Begin {
        /// The number of the text.
        number: usize,
        /// The number of all texts.
        of: usize,
        /// The seed of its draws.
        seed: u64,
        /// The turn of a conversation, from 0.
        turn: usize,
        /// The prompt.
        prompt: &'a str,
    },
    /// More of the current text.
    More(&'a str),
    /// The current text ends.
    End(End),
}

/// A function that receives the pieces.
pub type Show = Arc<dyn Fn(Piece<'_>) -> std::io::Result<()> + Send + Sync>;

/// The position of the output: all texts before one, and a part of it.
#[derive(Default)]
pub(super) struct Shown {
    text: usize,
    begun: bool,
    bytes: usize,
}

impl Shown {
    /// Shows the new parts.
    pub(super) fn update(
        &mut self,
        texts: &[Text],
        show: &dyn Fn(Piece<'_>) -> std::io::Result<()>,
    ) -> Result<()> {
        let failed = |source| RunError::File { path: "standard output".into(), source };
        while let Some(text) = texts.get(self.text) {
            if !self.begun {
                let number = self.text;
                let of = texts.len();
                let seed = text.prompt.seed;
                let turn = text.prompt.turn;
                let prompt = &*text.prompt.text;
                show(Piece::Begin { number, of, seed, turn, prompt }).map_err(failed)?;
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
