//! Multiple-choice questions. A model answers with the ending it finds most likely.

mod encode;
mod eval_file;
mod json_lines;
mod question;

pub(crate) use json_lines::QUESTION;
pub use question::{Ending, Question, TextLengths};

use std::path::Path;

use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;

use crate::data_file::DataFile;
use crate::{ArrayShape, BatchShape, Error, IGNORED, MicroBatch, Source, Tokenizer};

/// Maximum size of a file of questions in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// The questions of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questions {
    /// The questions in file order.
    pub questions: Vec<Question>,
    /// SHA-256 of the file.
    pub sha256: String,
}

impl Questions {
    /// Reads an evaluation file of llm.c (`.bin`), with GPT-2's tokens, or JSON lines, a JSON list or Parquet
    /// with the keys `context` or `ctx`, `endings` and `label`. Endings follow the context after a space.
    /// Text is tokenized as by lm-evaluation-harness.
    ///
    /// # Errors
    /// The file cannot be read; [`Error::BadQuestion`] names the first invalid line or example.
    pub fn read(path: &Path, tokenizer: &Tokenizer) -> Result<Self, Error> {
        let bytes = DataFile::open(path)?.read_whole(MOST_BYTES)?;
        let is_eval_file = path.extension().is_some_and(|extension| extension == "bin");
        let unit = if is_eval_file { "question" } else { "line" };
        let bad = |(number, reason)| Error::BadQuestion { path: path.to_path_buf(), unit, number, reason };
        let questions = match is_eval_file {
            true => eval_file::parse(&bytes).map_err(bad)?,
            false => json_lines::read(path, tokenizer)?,
        };
        if questions.is_empty() {
            return Err(bad((1, "there is no question".to_owned())));
        }
        Ok(Questions { questions, sha256: hexadecimal(&Sha256::digest(&bytes)) })
    }

    /// Returns the number of tokens in the longest context with an ending.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    /// Returns the number of tokens in the longest ending.
    #[must_use]
    pub fn longest_ending(&self) -> usize {
        let endings = self.questions.iter().flat_map(|question| &question.endings);
        endings.map(|ending| ending.tokens.len()).max().unwrap_or(0)
    }

    /// Returns how many endings, with their context, have more than `tokens` tokens.
    #[must_use]
    pub fn longer_than(&self, tokens: usize) -> usize {
        self.lengths().filter(|length| *length > tokens).count()
    }

    /// Returns the number of tokens of each ending with its context.
    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.questions.iter().flat_map(|question| {
            question.endings.iter().map(|ending| question.context.len() + ending.tokens.len())
        })
    }
}

/// Questions as validation micro-batches. Each is one context with one ending, padded to a fixed length. Only
/// the ending's tokens are targets. Longer rows lose their first tokens.
#[derive(Clone, Debug)]
pub struct ChoiceSource {
    questions: Vec<Question>,
    /// (question index, ending index) of every micro-batch.
    rows: Vec<(usize, usize)>,
    context: usize,
}

impl ChoiceSource {
    /// Returns a source with rows of `context` tokens.
    ///
    /// # Errors
    /// An ending is longer than that, or `context` is 0.
    pub fn new(questions: Vec<Question>, context: usize) -> Result<Self, Error> {
        let endings = |(index, question): (usize, &Question)| {
            (0..question.endings.len()).map(|ending| (index, ending)).collect::<Vec<_>>()
        };
        let rows: Vec<_> = questions.iter().enumerate().flat_map(endings).collect();
        let endings = questions.iter().flat_map(|question| &question.endings);
        let longest = endings.map(|ending| ending.tokens.len()).max().unwrap_or(0);
        if context == 0 || longest > context {
            return Err(Error::BadShape { rows: rows.len(), columns: context });
        }
        Ok(ChoiceSource { questions, rows, context })
    }

    /// Returns the tokens of a row, and the number of them that belong to the context.
    fn tokens(&self, row: usize) -> (impl Iterator<Item = u32>, usize) {
        let (question, ending) = self.rows[row];
        let Question { context, endings, .. } = &self.questions[question];
        let ending = &endings[ending].tokens;
        let cut = (context.len() + ending.len()).saturating_sub(self.context + 1);
        (context[cut..].iter().chain(ending).copied(), context.len() - cut)
    }
}

impl Source for ChoiceSource {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        self.validation(number % self.rows.len().max(1) as u64, out)
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.validation_micro_batches();
        let row = usize::try_from(index).ok().filter(|row| *row < self.rows.len());
        let row = row.ok_or(Error::NoSuchValidation { index, count })?;
        let (tokens, before) = self.tokens(row);
        let tokens: Vec<u32> = tokens.collect();
        let inputs = out.inputs.reset_u32(&[1, self.context]);
        inputs.fill(0);
        inputs.iter_mut().zip(&tokens).for_each(|(input, token)| *input = *token);
        let targets = out.targets.reset_u32(&[1, self.context]);
        targets.fill(IGNORED);
        let shifted = targets.iter_mut().zip(&tokens[1..]).skip(before - 1);
        shifted.for_each(|(target, token)| *target = *token);
        out.documents = None;
        Ok(())
    }

    fn shape(&self) -> BatchShape {
        let tokens = ArrayShape::of_u32([1, self.context]);
        BatchShape { inputs: tokens.clone(), targets: tokens }
    }

    fn validation_micro_batches(&self) -> u64 {
        self.rows.len() as u64
    }
}
