//! Multiple choice: questions with several endings, of which a model finds one the likeliest.

mod eval_file;
mod json_lines;
mod question;

pub(crate) use json_lines::QUESTION;
pub use question::{Ending, Question};

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::data_file::DataFile;
use crate::{ArrayShape, BatchShape, Error, IGNORED, MicroBatch, Source, Tokenizer};

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
    /// context after a space.
    ///
    /// # Errors
    /// A file that cannot be read; [`Error::BadQuestion`] names the first invalid line or example.
    pub fn read(path: &Path, tokenizer: &Tokenizer) -> Result<Self, Error> {
        let file = DataFile::open(path)?;
        let mut bytes = vec![0; usize::try_from(file.len()).map_err(|_| Error::TooLong)?];
        file.read_at(0, &mut bytes)?;
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
        Ok(Questions { questions, sha256: format!("{:x}", Sha256::digest(&bytes)) })
    }

    /// Tokens of the longest context with an ending.
    #[must_use]
    pub fn longest(&self) -> usize {
        let rows = self.questions.iter().flat_map(|question| {
            question.endings.iter().map(|ending| question.context.len() + ending.tokens.len())
        });
        rows.max().unwrap_or(0)
    }
}

/// Questions as validation micro-batches: each is one context with one ending, filled up to a length. Only
/// the ending's tokens are targets.
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
    /// A question that is longer, or a context without tokens.
    pub fn new(questions: Vec<Question>, context: usize) -> Result<Self, Error> {
        let endings = |(index, question): (usize, &Question)| {
            (0..question.endings.len()).map(|ending| (index, ending)).collect::<Vec<_>>()
        };
        let rows: Vec<_> = questions.iter().enumerate().flat_map(endings).collect();
        let source = ChoiceSource { questions, rows, context };
        let longest = (0..source.rows.len()).map(|row| source.tokens(row).count()).max().unwrap_or(0);
        if context == 0 || longest > context + 1 {
            return Err(Error::BadShape { rows: source.rows.len(), columns: context });
        }
        Ok(source)
    }

    fn tokens(&self, row: usize) -> impl Iterator<Item = u32> {
        let (question, ending) = self.rows[row];
        let Question { context, endings, .. } = &self.questions[question];
        context.iter().chain(&endings[ending].tokens).copied()
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
        let first = self.questions[self.rows[row].0].context.len() - 1;
        let inputs = out.inputs.reset_u32(&[1, self.context]);
        inputs.fill(0);
        inputs.iter_mut().zip(self.tokens(row)).for_each(|(input, token)| *input = token);
        let targets = out.targets.reset_u32(&[1, self.context]);
        targets.fill(IGNORED);
        let shifted = targets.iter_mut().zip(self.tokens(row).skip(1));
        shifted.skip(first).for_each(|(target, token)| *target = token);
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
