//! Multiple choice: questions with several endings, of which a model finds one the likeliest.

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

/// The most bytes of a file of questions.
const MOST_BYTES: u64 = 1 << 30;

/// Questions of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questions {
    /// The questions in their order.
    pub questions: Vec<Question>,
    /// The SHA-256 of the file.
    pub sha256: String,
}

impl Questions {
    /// Reads an evaluation file of llm.c (`.bin`), whose tokens are those of GPT-2, or JSON lines, a
    /// list or Parquet with the keys `context` or `ctx`, `endings` and `label`, whose endings follow the
    /// context after a space. Their tokens are those of lm-evaluation-harness.
    ///
    /// # Errors
    /// A file that cannot be read; [`Error::BadQuestion`] names the first invalid line or example.
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

    /// Tokens of the longest context with an ending.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    /// Tokens of the longest ending.
    #[must_use]
    pub fn longest_ending(&self) -> usize {
        let endings = self.questions.iter().flat_map(|question| &question.endings);
        endings.map(|ending| ending.tokens.len()).max().unwrap_or(0)
    }

    /// The number of endings that have more tokens with their context.
    #[must_use]
    pub fn longer_than(&self, tokens: usize) -> usize {
        self.lengths().filter(|length| *length > tokens).count()
    }

    /// Tokens of each ending with its context.
    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.questions.iter().flat_map(|question| {
            question.endings.iter().map(|ending| question.context.len() + ending.tokens.len())
        })
    }
}

/// Questions as validation micro-batches: each is one context with one ending, filled up to a length. Only
/// the ending's tokens are targets. A longer one loses its first tokens.
#[derive(Clone, Debug)]
pub struct ChoiceSource {
    questions: Vec<Question>,
    /// Indices of question and ending of every micro-batch.
    rows: Vec<(usize, usize)>,
    context: usize,
}

impl ChoiceSource {
    /// Rows of `context` tokens.
    ///
    /// # Errors
    /// An ending that is longer, or rows without tokens.
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

    /// The tokens of a row, and how many of them are the context's.
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
