//! Provides micro-batches of preference pairs.

use super::cut::CutFigures;
use super::pairs::{Answered, Pair};
use crate::batch::{checked_shape, mark_tokens};
use crate::permutation::Permutation;
use crate::step_lengths::StepLengths;
use crate::{BatchShape, Error, IGNORED, MicroBatch, MicroBatchId, PairArrays, Source};
use philox::key_of_name;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use system::numbers::hexadecimal;

/// Options for cutting pairs into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairOptions {
    /// Number of input tokens per sequence.
    pub context: usize,
    /// Number of pairs per micro-batch.
    pub micro_batch: usize,
    /// Seed for the order of training.
    pub seed: u64,
    /// Number of validation micro-batches.
    pub validation_micro_batches: u64,
    /// Whether the prompt tokens before chosen answers are targets too.
    pub learns_prompts: bool,
    /// Whether micro-batches mark which inputs are tokens.
    pub marks_tokens: bool,
    /// Number of pairs per step, if steps group pairs of similar length; otherwise `None`.
    pub groups: Option<usize>,
}

/// Provides preference pairs as micro-batches of two sequences per pair: the prompt with the chosen answer,
/// then with the rejected one. A target is the token after its input. Sequences are padded at the end, and
/// longer ones are cut. Training pairs are numbered before validation pairs.
#[derive(Debug)]
pub struct PairSource {
    options: PairOptions,
    key: [u32; 2],
    training: Vec<Pair>,
    validation: Vec<Pair>,
    cut: [CutFigures; 2],
    lengths: Option<Arc<StepLengths>>,
}

impl PairSource {
    /// Cuts pairs to sequences of `context` tokens. Pairs with an answer that begins beyond that are skipped.
    /// There may be no validation pair if there are no validation micro-batches.
    ///
    /// # Errors
    /// A size is zero or too large, or no pair of a split is left.
    pub fn new(training: Vec<Pair>, validation: Vec<Pair>, options: PairOptions) -> Result<Self, Error> {
        checked_shape(2 * options.micro_batch, options.context)?;
        let key = key_of_name(options.seed, "data.order");
        let (training, of_training) = cut(training, options.context);
        let (validation, of_validation) = cut(validation, options.context);
        if training.is_empty() || (validation.is_empty() && options.validation_micro_batches > 0) {
            return Err(Error::NoAnswers { context: options.context });
        }
        let lengths = options.groups.map(|step| {
            let size = |answered: &Answered| answered.tokens.len() - 1;
            let sizes = training.iter().map(|pair| size(&pair.chosen).max(size(&pair.rejected))).collect();
            Arc::new(StepLengths::new(sizes, step, options.context, options.seed))
        });
        let cut = [of_training, of_validation];
        Ok(Self { options, key, training, validation, cut, lengths })
    }

    /// Returns statistics of training and validation pairs that are longer than a sequence.
    #[must_use]
    pub fn cut(&self) -> [CutFigures; 2] {
        self.cut
    }

    /// Returns the number of training tokens, and the SHA-256 of all pairs.
    #[must_use]
    pub fn identity(&self) -> (u64, String) {
        let mut digest = Sha256::new();
        let mut tokens = 0;
        for Pair { chosen, rejected } in self.training.iter().chain(&self.validation) {
            for answered in [chosen, rejected] {
                answered.tokens.iter().for_each(|token| digest.update(token.to_le_bytes()));
                digest.update(u32::MAX.to_le_bytes());
                digest.update((answered.answer as u64).to_le_bytes());
            }
        }
        for Pair { chosen, rejected } in &self.training {
            tokens += (chosen.tokens.len() + rejected.tokens.len()) as u64;
        }
        (tokens, hexadecimal(&digest.finalize()))
    }

    /// Returns the total number of training and validation pairs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.training.len() + self.validation.len()
    }

    /// Returns the number of the pair at `index` in a micro-batch.
    fn number(&self, id: MicroBatchId, index: usize) -> usize {
        let first = |micro_batch: u64| micro_batch as usize * self.options.micro_batch + index;
        match id {
            MicroBatchId::Training(number) => {
                let sequence = u128::from(number) * self.options.micro_batch as u128 + index as u128;
                match &self.lengths {
                    Some(lengths) => lengths.sample(sequence),
                    None => Permutation::in_epochs(self.training.len() as u64, self.key, sequence) as usize,
                }
            }
            MicroBatchId::Validation(number) => self.training.len() + first(number) % self.validation.len(),
            MicroBatchId::Pairs(number) => first(number) % self.count(),
        }
    }

    fn pair(&self, number: usize) -> Option<&Pair> {
        let held_out = || self.validation.get(number - self.training.len());
        self.training.get(number).or_else(held_out)
    }

    /// Fills `out` with the pairs whose numbers `number_of` returns for `0..micro_batch`, in sequences of
    /// `context` tokens.
    fn fill(&self, context: usize, out: &mut MicroBatch, number_of: impl Fn(usize) -> usize) {
        let PairOptions { micro_batch, learns_prompts, .. } = self.options;
        let rows = 2 * micro_batch;
        if self.options.marks_tokens {
            let pairs = (0..micro_batch).map(|index| self.pair(number_of(index)));
            let lengths = pairs.flat_map(|pair| {
                let length = |of: fn(&Pair) -> &Answered| pair.map_or(0, |pair| of(pair).tokens.len());
                [length(|pair| &pair.chosen), length(|pair| &pair.rejected)]
            });
            mark_tokens(&mut out.tokens, [rows, context], lengths);
        }
        let mut inputs = out.inputs.reset_u32(&[rows, context]).chunks_exact_mut(context);
        let mut targets = out.targets.reset_u32(&[rows, context]).chunks_exact_mut(context);
        let PairArrays { answers, numbers } = out.pairs.get_or_insert_default();
        let mut answers = answers.reset_u32(&[rows]).iter_mut();
        numbers.clear();
        for number in (0..micro_batch).map(number_of) {
            numbers.push(number as u64);
            let Some(Pair { chosen, rejected }) = self.pair(number) else { continue };
            for (answered, learns_prompt) in [(chosen, learns_prompts), (rejected, false)] {
                if let (Some(input), Some(target), Some(answer)) =
                    (inputs.next(), targets.next(), answers.next())
                {
                    *answer = fill(answered, input, target, learns_prompt);
                }
            }
        }
    }
}

/// Cuts sequences to `context` inputs, and skips pairs that then lack an answer.
fn cut(mut pairs: Vec<Pair>, context: usize) -> (Vec<Pair>, CutFigures) {
    let window = context + 1;
    let mut figures = CutFigures::default();
    // The first token is no target.
    let has_answer = |answered: &Answered| answered.answer.max(1) < answered.tokens.len();
    pairs.retain_mut(|Pair { chosen, rejected }| {
        let beyond = |answered: &Answered| answered.tokens.len().saturating_sub(window.max(answered.answer));
        let cut = beyond(chosen) + beyond(rejected);
        chosen.tokens.truncate(window);
        rejected.tokens.truncate(window);
        let is_kept = has_answer(chosen) && has_answer(rejected);
        figures.add(is_kept, cut);
        is_kept
    });
    (pairs, figures)
}

/// Fills one sequence, and returns the position of the answer's first target.
fn fill(answered: &Answered, input: &mut [u32], target: &mut [u32], learns_prompt: bool) -> u32 {
    let tokens = &answered.tokens;
    let first = answered.answer.max(1) - 1;
    input.fill(0);
    target.fill(IGNORED);
    input.iter_mut().zip(tokens).for_each(|(input, token)| *input = *token);
    let from = if learns_prompt { 0 } else { first };
    let next = target.iter_mut().zip(&tokens[1..]).skip(from);
    next.for_each(|(target, token)| *target = *token);
    first as u32
}

impl Source for PairSource {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let context = match &self.lengths {
            Some(lengths) => lengths.length_of(number, self.options.micro_batch),
            None => self.options.context,
        };
        self.fill(context, out, |pair| self.number(MicroBatchId::Training(number), pair));
        Ok(())
    }

    /// Counts the targets of chosen answers with their prompts, the only ones in a cross-entropy.
    fn targets(&self, id: MicroBatchId) -> Result<u64, Error> {
        let numbers = (0..self.options.micro_batch).map(|pair| self.number(id, pair));
        let chosen = numbers.filter_map(|number| self.pair(number)).map(|pair| &pair.chosen);
        // The first token is no target.
        Ok(chosen.map(|chosen| chosen.tokens.len() as u64 - 1).sum())
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.options.validation_micro_batches;
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        self.fill(self.options.context, out, |pair| self.number(MicroBatchId::Validation(index), pair));
        Ok(())
    }

    fn pairs(&self) -> Option<u64> {
        Some(self.count() as u64)
    }

    fn pairs_in_order(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        self.fill(self.options.context, out, |pair| self.number(MicroBatchId::Pairs(index), pair));
        Ok(())
    }

    fn training_sequences(&self) -> Option<u64> {
        Some(self.training.len() as u64)
    }

    fn token_share(&self) -> f64 {
        let context = self.options.context;
        let length = |answered: &Answered| answered.tokens.len().min(context);
        let of_pair = |Pair { chosen, rejected }: &Pair| length(chosen) + length(rejected);
        let tokens: usize = self.training.iter().map(of_pair).sum();
        tokens as f64 / (2 * self.training.len() * context) as f64
    }

    fn shape(&self) -> BatchShape {
        BatchShape::of_tokens(2 * self.options.micro_batch, self.options.context)
    }

    fn lengths(&self) -> Option<&Arc<StepLengths>> {
        self.lengths.as_ref()
    }

    fn held_out_sequences(&self) -> Option<u64> {
        Some(self.validation.len() as u64)
    }

    fn validation_micro_batches(&self) -> u64 {
        self.options.validation_micro_batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(first: u32, prompt: usize, answer: usize) -> Answered {
        Answered { tokens: (first..).take(prompt + answer).collect(), answer: prompt }
    }

    #[test]
    fn pairs_are_two_sequences_whose_answers_are_targets() {
        let pair = |first, [prompt, chosen, rejected]: [usize; 3]| Pair {
            chosen: answered(first, prompt, chosen),
            rejected: answered(first + 50, prompt, rejected),
        };
        // The answers of the second begin beyond the context.
        let all = vec![pair(10, [2, 2, 1]), pair(200, [6, 1, 1]), pair(30, [1, 9, 2])];
        let options = |learns_prompts| PairOptions {
            context: 5,
            micro_batch: 1,
            seed: 1,
            validation_micro_batches: 2,
            learns_prompts,
            marks_tokens: true,
            groups: None,
        };
        let source = PairSource::new(all.clone(), all[..1].to_vec(), options(false)).unwrap();
        assert_eq!((source.pairs(), source.training_sequences()), (Some(3), Some(2)));
        assert_eq!(source.cut()[0], CutFigures { all: 3, cut: 1, cut_tokens: 4, left_out: 1 });
        let mut batch = MicroBatch::default();
        const NONE: u32 = IGNORED;
        source.pairs_in_order(1, &mut batch).unwrap();
        assert_eq!(batch.inputs.tokens().unwrap(), [30, 31, 32, 33, 34, 80, 81, 82, 0, 0]);
        assert_eq!(batch.targets.tokens().unwrap(), [31, 32, 33, 34, 35, 81, 82, NONE, NONE, NONE]);
        source.validation(1, &mut batch).unwrap();
        let pairs = batch.pairs.as_ref().unwrap();
        assert_eq!((pairs.answers.tokens().unwrap(), &pairs.numbers[..]), (&[1, 1][..], &[2][..]));
        assert_eq!(batch.targets.tokens().unwrap(), [NONE, 12, 13, NONE, NONE, NONE, 62, NONE, NONE, NONE]);
        let source = PairSource::new(all.clone(), all[..1].to_vec(), options(true)).unwrap();
        source.validation(0, &mut batch).unwrap();
        assert_eq!(batch.targets.tokens().unwrap(), [11, 12, 13, NONE, NONE, NONE, 62, NONE, NONE, NONE]);
        assert_eq!(batch.tokens.as_ref().unwrap().tokens().unwrap(), [1, 1, 1, 1, 0, 1, 1, 1, 0, 0]);
        // Only targets of chosen answers are learnt.
        let id = MicroBatchId::Validation(0);
        assert_eq!((source.targets(id).unwrap(), source.tokens(id).unwrap()), (3, 7));
    }
}
