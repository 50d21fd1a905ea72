//! Provides micro-batches of conversations.

use super::conversation::Conversation;
use super::cut::CutFigures;
use crate::batch::{checked_shape, mark_tokens};
use crate::permutation::Permutation;
use crate::step_lengths::StepLengths;
use crate::{BatchShape, Error, IGNORED, MicroBatch, MicroBatchId, Source};
use philox::key_of_name;
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use system::numbers::hexadecimal;

/// Options for cutting conversations into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatOptions {
    /// Number of input tokens per sequence.
    pub context: usize,
    /// Number of sequences per micro-batch.
    pub micro_batch: usize,
    /// Seed for the order of training.
    pub seed: u64,
    /// Number of validation micro-batches.
    pub validation_micro_batches: u64,
    /// Whether validation starts over after its last sequence; otherwise further sequences are empty.
    pub repeats_validation: bool,
    /// Whether a sequence holds as many whole conversations as fit, instead of one.
    pub packs: bool,
    /// Whether attention stays within a conversation.
    pub masks: bool,
    /// Whether micro-batches mark which inputs are tokens.
    pub marks_tokens: bool,
    /// Number of sequences per step, if steps group sequences of similar length; otherwise `None`.
    pub groups: Option<usize>,
}

/// Provides conversations as micro-batches. A target is the token after its input if that token is trained
/// on, and otherwise [`IGNORED`]. Sequences are padded at the end, and longer conversations are cut.
#[derive(Debug)]
pub struct ChatSource {
    options: ChatOptions,
    key: [u32; 2],
    training: Rows,
    validation: Rows,
    lengths: Option<Arc<StepLengths>>,
}

/// Conversations, grouped into sequences.
#[derive(Debug)]
struct Rows {
    conversations: Vec<Conversation>,
    /// The range of conversations in each sequence.
    rows: Vec<Range<usize>>,
    /// Number of targets in each sequence.
    targets: Vec<u64>,
    cut: CutFigures,
}

impl ChatSource {
    /// Cuts conversations to sequences of `context` tokens. Conversations without an answer within that are
    /// skipped. There may be no validation conversation if there are no validation micro-batches.
    ///
    /// # Errors
    /// A size is zero or too large, or no conversation of a split is left.
    pub fn new(
        training: Vec<Conversation>,
        validation: Vec<Conversation>,
        options: ChatOptions,
    ) -> Result<Self, Error> {
        checked_shape(options.micro_batch, options.context)?;
        let key = key_of_name(options.seed, "data.order");
        let training = Rows::new(training, options);
        let validation = Rows::new(validation, options);
        if training.rows.is_empty() || (validation.rows.is_empty() && options.validation_micro_batches > 0) {
            return Err(Error::NoAnswers { context: options.context });
        }
        let lengths = options.groups.map(|step| {
            let sizes = (0..training.rows.len()).map(|row| training.length(Some(row)) - 1).collect();
            Arc::new(StepLengths::new(sizes, step, options.context, options.seed))
        });
        Ok(Self { options, key, training, validation, lengths })
    }

    /// Returns the number of training conversations, and of the sequences they form.
    #[must_use]
    pub fn training(&self) -> (usize, usize) {
        (self.training.conversations.len(), self.training.rows.len())
    }

    /// Returns statistics of training and validation conversations that are longer than a sequence.
    #[must_use]
    pub fn cut(&self) -> [CutFigures; 2] {
        [self.training.cut, self.validation.cut]
    }

    /// Returns the number of training tokens, and a SHA-256 over them and the mask of trained tokens.
    #[must_use]
    pub fn identity(&self) -> (u64, String) {
        let mut digest = Sha256::new();
        let mut tokens = 0;
        for conversation in &self.training.conversations {
            tokens += conversation.tokens.len() as u64;
            for (token, is_answer) in conversation.tokens.iter().zip(&conversation.answers) {
                digest.update(token.to_le_bytes());
                digest.update([u8::from(*is_answer)]);
            }
            digest.update(u32::MAX.to_le_bytes());
        }
        (tokens, hexadecimal(&digest.finalize()))
    }

    /// Returns the index of the sequence in row `row` of training micro-batch `number`.
    fn training_row(&self, number: u64, row: usize) -> Option<usize> {
        let sequence = u128::from(number) * self.options.micro_batch as u128 + row as u128;
        Some(match &self.lengths {
            Some(lengths) => lengths.sample(sequence),
            None => Permutation::in_epochs(self.training.rows.len() as u64, self.key, sequence) as usize,
        })
    }

    /// Returns the index of the sequence in row `row` of validation micro-batch `index`; `None` for an empty
    /// row.
    fn validation_row(&self, index: u64, row: usize) -> Option<usize> {
        let sequence = index as usize * self.options.micro_batch + row;
        let all = self.validation.rows.len();
        match self.options.repeats_validation {
            true => Some(sequence % all),
            false => Some(sequence).filter(|sequence| *sequence < all),
        }
    }

    /// Fills `out` with sequences of `context` tokens, whose indices `row_of` returns for `0..micro_batch`;
    /// `None` is an empty sequence.
    fn fill(
        &self,
        (rows, context): (&Rows, usize),
        out: &mut MicroBatch,
        row_of: impl Fn(usize) -> Option<usize>,
    ) {
        let ChatOptions { micro_batch, masks, marks_tokens, .. } = self.options;
        if marks_tokens {
            mark_tokens(
                &mut out.tokens,
                [micro_batch, context],
                (0..micro_batch).map(|row| rows.length(row_of(row))),
            );
        }
        let inputs = out.inputs.reset_u32(&[micro_batch, context]).chunks_exact_mut(context);
        let targets = out.targets.reset_u32(&[micro_batch, context]).chunks_exact_mut(context);
        let mut documents = masks.then(|| out.documents.take().unwrap_or_default());
        let mut starts = documents.as_mut().map(|starts| starts.reset_u32(&[micro_batch, context]));
        for (row, (input, target)) in inputs.zip(targets).enumerate() {
            let starts = starts.as_mut().map(|starts| &mut starts[row * context..(row + 1) * context]);
            rows.fill(row_of(row), input, target, starts);
        }
        out.documents = documents;
    }
}

impl Rows {
    fn new(mut conversations: Vec<Conversation>, options: ChatOptions) -> Self {
        let window = options.context + 1;
        let mut cut = CutFigures::default();
        conversations.retain_mut(|Conversation { tokens, answers }| {
            let beyond = answers.iter().skip(window).filter(|is_answer| **is_answer).count();
            tokens.truncate(window);
            answers.truncate(window);
            // The first token is no target.
            let is_kept = answers.iter().skip(1).any(|is_answer| *is_answer);
            cut.add(is_kept, beyond);
            is_kept
        });
        let (conversations, rows) = match options.packs {
            true => packed(conversations, window),
            false => {
                let rows = (0..conversations.len()).map(|index| index..index + 1).collect();
                (conversations, rows)
            }
        };
        let targets = rows.iter().map(|row| {
            let answers = conversations[row.clone()].iter().flat_map(|conversation| &conversation.answers);
            // The first token of a sequence is no target.
            answers.skip(1).take(options.context).filter(|is_answer| **is_answer).count() as u64
        });
        Self { targets: targets.collect(), conversations, rows, cut }
    }

    /// Returns the number of tokens in a sequence, including a last one that is only a target.
    fn length(&self, row: Option<usize>) -> usize {
        self.of_row(row).iter().map(|conversation| conversation.tokens.len()).sum()
    }

    /// Returns the conversations of a sequence; empty for an empty one.
    fn of_row(&self, row: Option<usize>) -> &[Conversation] {
        row.map_or(&[], |row| &self.conversations[self.rows[row].clone()])
    }

    /// Fills one sequence, and if requested the position at which each token's conversation begins.
    fn fill(&self, row: Option<usize>, input: &mut [u32], target: &mut [u32], starts: Option<&mut [u32]>) {
        let own = self.of_row(row);
        let tokens = || own.iter().flat_map(|conversation| &conversation.tokens).copied();
        let counts = own.iter().flat_map(|conversation| &conversation.answers);
        input.fill(0);
        target.fill(IGNORED);
        input.iter_mut().zip(tokens()).for_each(|(input, token)| *input = token);
        for (target, (token, counts)) in target.iter_mut().zip(tokens().zip(counts).skip(1)) {
            *target = if *counts { token } else { IGNORED };
        }
        let Some(starts) = starts else { return };
        starts.fill(0);
        let mut first = 0;
        for conversation in own {
            let end = (first + conversation.tokens.len()).min(starts.len());
            starts[first.min(end)..].fill(first as u32);
            first = end;
        }
    }
}

/// Packs conversations into sequences of at most `window` tokens: the longest first, each into the fullest
/// sequence with room for it (best-fit decreasing). Returns the conversations in sequence order, and their
/// range in each sequence. Sequences are ordered by their first conversation.
fn packed(conversations: Vec<Conversation>, window: usize) -> (Vec<Conversation>, Vec<Range<usize>>) {
    let mut order: Vec<usize> = (0..conversations.len()).collect();
    order.sort_by_key(|index| Reverse(conversations[*index].tokens.len()));
    let mut members: Vec<Vec<usize>> = Vec::new();
    // Room for tokens of each sequence, with its index.
    let mut rooms: BTreeSet<(usize, usize)> = BTreeSet::new();
    for index in order {
        let tokens = conversations[index].tokens.len();
        let (room, row) = rooms.range((tokens, 0)..).next().copied().unwrap_or((window, members.len()));
        match members.get_mut(row) {
            Some(row) => row.push(index),
            None => members.push(vec![index]),
        }
        rooms.remove(&(room, row));
        rooms.insert((room.saturating_sub(tokens), row));
    }
    members.iter_mut().for_each(|row| row.sort_unstable());
    members.sort_unstable();
    let mut conversations: Vec<_> = conversations.into_iter().map(Some).collect();
    let mut sorted = Vec::with_capacity(conversations.len());
    let mut rows = Vec::with_capacity(members.len());
    for row in members {
        let first = sorted.len();
        sorted.extend(row.into_iter().filter_map(|index| conversations[index].take()));
        rows.push(first..sorted.len());
    }
    (sorted, rows)
}

impl Source for ChatSource {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let context = match &self.lengths {
            Some(lengths) => lengths.length_of(number, self.options.micro_batch),
            None => self.options.context,
        };
        self.fill((&self.training, context), out, |row| self.training_row(number, row));
        Ok(())
    }

    fn targets(&self, id: MicroBatchId) -> Result<u64, Error> {
        let sum = |rows: &Rows, row_of: &dyn Fn(usize) -> Option<usize>| {
            (0..self.options.micro_batch).filter_map(row_of).map(|row| rows.targets[row]).sum()
        };
        match id {
            MicroBatchId::Training(number) => Ok(sum(&self.training, &|row| self.training_row(number, row))),
            MicroBatchId::Validation(index) => {
                Ok(sum(&self.validation, &|row| self.validation_row(index, row)))
            }
            MicroBatchId::Pairs(_) => Err(Error::NotOfPairs),
        }
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.options.validation_micro_batches;
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        self.fill((&self.validation, self.options.context), out, |row| self.validation_row(index, row));
        Ok(())
    }

    fn training_sequences(&self) -> Option<u64> {
        Some(self.training.rows.len() as u64)
    }

    fn token_share(&self) -> f64 {
        let context = self.options.context;
        let rows = 0..self.training.rows.len();
        let tokens: usize = rows.clone().map(|row| self.training.length(Some(row)).min(context)).sum();
        tokens as f64 / (rows.len() * context) as f64
    }

    fn shape(&self) -> BatchShape {
        BatchShape::of_tokens(self.options.micro_batch, self.options.context)
    }

    fn lengths(&self) -> Option<&Arc<StepLengths>> {
        self.lengths.as_ref()
    }

    fn held_out_sequences(&self) -> Option<u64> {
        Some(self.validation.rows.len() as u64)
    }

    fn packs_documents(&self) -> bool {
        self.options.masks
    }

    fn validation_micro_batches(&self) -> u64 {
        self.options.validation_micro_batches
    }
}

#[cfg(test)]
mod tests {
    use super::{ChatOptions, ChatSource, Conversation, CutFigures};
    use crate::source::read_targets;
    use crate::{IGNORED, MicroBatch, MicroBatchId, Source};

    /// A conversation of a question and an answer, with consecutive token ids from `first` on.
    fn conversation(first: u32, question: usize, answer: usize) -> Conversation {
        let count = question + answer;
        let tokens = (first..).take(count).collect();
        Conversation { tokens, answers: (0..count).map(|index| index >= question).collect() }
    }

    #[test]
    fn a_conversation_goes_to_the_fullest_sequence_with_room() {
        let lengths = |sizes: &[usize]| {
            let all = sizes.iter().map(|size| conversation(0, 1, size - 1)).collect();
            let (sorted, rows) = super::packed(all, 10);
            let row = |row: &std::ops::Range<usize>| {
                sorted[row.clone()].iter().map(|conversation| conversation.tokens.len()).collect::<Vec<_>>()
            };
            rows.iter().map(row).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[3, 6, 2, 7, 5, 4, 3]), [vec![3, 7], vec![6, 4], vec![2, 5, 3]]);
        assert_eq!(lengths(&[10, 2, 9]), [vec![10], vec![2], vec![9]]);
        assert!(lengths(&[]).is_empty());
    }

    #[test]
    fn answers_alone_are_targets_in_padded_and_packed_sequences() {
        let all = vec![conversation(10, 2, 2), conversation(20, 1, 2), conversation(30, 9, 3)];
        let options = |packs| ChatOptions {
            context: 7,
            micro_batch: 1,
            seed: 1,
            validation_micro_batches: 2,
            repeats_validation: false,
            packs,
            masks: packs,
            marks_tokens: packs,
            groups: None,
        };
        let mut batch = MicroBatch::default();
        // The last one has no answer within the context.
        let padded = ChatSource::new(all.clone(), all.clone(), options(false)).unwrap();
        assert_eq!(padded.training(), (2, 2));
        assert_eq!(padded.cut()[1], CutFigures { all: 3, cut: 0, cut_tokens: 0, left_out: 1 });
        padded.validation(0, &mut batch).unwrap();
        const NONE: u32 = IGNORED;
        assert_eq!(batch.inputs.tokens().unwrap(), [10, 11, 12, 13, 0, 0, 0]);
        assert_eq!(batch.targets.tokens().unwrap(), [NONE, 12, 13, NONE, NONE, NONE, NONE]);
        assert!(batch.documents.is_none());
        padded.validation(1, &mut batch).unwrap();
        assert_eq!(batch.targets.tokens().unwrap(), [21, 22, NONE, NONE, NONE, NONE, NONE]);

        let packed = ChatSource::new(all.clone(), all, options(true)).unwrap();
        assert_eq!(packed.training(), (2, 1));
        packed.train(5, &mut batch).unwrap();
        assert_eq!(batch.inputs.tokens().unwrap(), [10, 11, 12, 13, 20, 21, 22]);
        assert_eq!(batch.targets.tokens().unwrap(), [NONE, 12, 13, NONE, 21, 22, NONE]);
        assert_eq!(batch.documents.as_ref().unwrap().tokens().unwrap(), [0, 0, 0, 0, 4, 4, 4]);
        // Every epoch has each sequence once.
        let seen = |epoch: u64| {
            let mut first: Vec<_> = (0..2)
                .map(|index| {
                    let mut batch = MicroBatch::default();
                    padded.train(2 * epoch + index, &mut batch).unwrap();
                    batch.inputs.tokens().unwrap()[0]
                })
                .collect();
            first.sort_unstable();
            first
        };
        assert!((0..4).all(|epoch| seen(epoch) == [10, 20]));
        for id in (0..4).map(MicroBatchId::Training).chain((0..2).map(MicroBatchId::Validation)) {
            for source in [&padded, &packed] {
                assert_eq!(source.targets(id).unwrap(), read_targets(source, id).unwrap(), "{id}");
            }
        }
        assert_eq!(packed.tokens(MicroBatchId::Training(0)).unwrap(), 7);
    }

    /// Validation contains each sequence once; further rows are empty, or start over with
    /// `repeats_validation`.
    #[test]
    fn validation_has_each_sequence_once_unless_it_repeats() {
        let all = vec![conversation(10, 2, 2), conversation(20, 1, 2)];
        const NONE: u32 = IGNORED;
        const FIRST: [[u32; 8]; 3] = [
            [10, 11, 12, 13, 20, 21, 22, 0],
            [NONE, 12, 13, NONE, 21, 22, NONE, NONE],
            [1, 1, 1, 1, 1, 1, 1, 0],
        ];
        for (repeats_validation, targets, second) in
            [(false, 4, [[0; 8], [NONE; 8], [0; 8]]), (true, 8, FIRST)]
        {
            let options = ChatOptions {
                context: 4,
                micro_batch: 4,
                seed: 1,
                validation_micro_batches: 1,
                repeats_validation,
                packs: false,
                masks: true,
                marks_tokens: true,
                groups: None,
            };
            let source = ChatSource::new(all.clone(), all.clone(), options).unwrap();
            let mut batch = MicroBatch::default();
            // What an earlier micro-batch has left is overwritten.
            source.train(0, &mut batch).unwrap();
            source.validation(0, &mut batch).unwrap();
            let halves = [&batch.inputs, &batch.targets, batch.tokens.as_ref().unwrap()].map(|array| {
                array.tokens().unwrap().chunks_exact(8).map(<[u32]>::to_vec).collect::<Vec<_>>()
            });
            for (half, (first, second)) in halves.iter().zip(FIRST.iter().zip(&second)) {
                assert_eq!((&half[0][..], &half[1][..]), (&first[..], &second[..]), "{repeats_validation}");
            }
            let id = MicroBatchId::Validation(0);
            assert_eq!(source.targets(id).unwrap(), targets);
            assert_eq!(read_targets(&source, id).unwrap(), targets);
        }
    }
}
