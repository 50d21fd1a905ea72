//! Micro-batches of text are pure functions of their number.

use data::{
    Bigrams, Component, Corpus, Error, MicroBatch, OrderKind, Source, Split, TokenOptions, TokenSource,
    Tokenizer,
};
use proptest::prelude::*;
use std::collections::HashSet;

const OPTIONS: TokenOptions = TokenOptions {
    context: 8,
    micro_batch: 3,
    seed: 1,
    order: OrderKind::Shuffled,
    validation_micro_batches: 4,
    vocabulary: 256,
    documents: None,
    ignored: None,
};

/// Builds a text in which every run of a few bytes occurs once, so that a row identifies its position.
fn numbers(length: usize) -> Vec<u8> {
    let mut text: Vec<u8> = (0_u32..).flat_map(|n| format!("{n:04};").into_bytes()).take(length).collect();
    text.truncate(length);
    text
}

fn cut(text: &[u8], fraction: f64, options: TokenOptions) -> Result<TokenSource, Error> {
    let corpus = Corpus::in_memory(text.to_vec())?;
    let split = Split::at_end(corpus.into(), fraction)?;
    TokenSource::new(vec![Component { split, weight: 1.0 }], Tokenizer::Bytes, &options)
}

fn source(text: &[u8], options: TokenOptions) -> TokenSource {
    cut(text, 0.25, options).unwrap()
}

fn rows(batch: &MicroBatch) -> Vec<(Vec<u32>, Vec<u32>)> {
    let columns = batch.inputs.shape[1];
    let inputs = batch.inputs.tokens().unwrap().chunks_exact(columns);
    let targets = batch.targets.tokens().unwrap().chunks_exact(columns);
    inputs.zip(targets).map(|(input, target)| (input.to_vec(), target.to_vec())).collect()
}

fn train_rows(source: &TokenSource, numbers: std::ops::Range<u64>) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut batch = MicroBatch::default();
    numbers
        .flat_map(|number| {
            source.train(number, &mut batch).unwrap();
            rows(&batch)
        })
        .collect()
}

#[test]
fn rows_are_the_text_at_their_positions() {
    let text = numbers(4000);
    let source = source(&text, OPTIONS);
    for number in [0, 1, 7, 500, u64::MAX / 3, u64::MAX] {
        let mut batch = MicroBatch::default();
        source.train(number, &mut batch).unwrap();
        assert_eq!(batch.inputs.shape, [3, 8]);
        assert_eq!(batch.targets.shape, [3, 8]);
        for (row, (input, target)) in rows(&batch).into_iter().enumerate() {
            let start = source.position(number, row).1.start as usize;
            let window: Vec<u32> = text[start..=start + 8].iter().map(|byte| u32::from(*byte)).collect();
            assert_eq!(input, window[..8], "micro-batch {number}, row {row}");
            assert_eq!(target, window[1..], "micro-batch {number}, row {row}");
        }
    }
}

#[test]
fn a_micro_batch_does_not_depend_on_earlier_ones() {
    let source = source(&numbers(4000), OPTIONS);
    let in_order = train_rows(&source, 0..50);
    for number in [49, 3, 20] {
        let first = number as usize * OPTIONS.micro_batch;
        assert_eq!(train_rows(&source, number..number + 1), in_order[first..first + OPTIONS.micro_batch]);
    }
}

#[test]
fn the_sequences_do_not_depend_on_the_micro_batch_size() {
    let text = numbers(4000);
    let three = source(&text, OPTIONS);
    let five = source(&text, TokenOptions { micro_batch: 5, ..OPTIONS });
    assert_eq!(train_rows(&three, 0..10), train_rows(&five, 0..6));
}

#[test]
fn seeds_and_epochs_have_different_orders() {
    let text = numbers(4000);
    let one = source(&text, OPTIONS);
    let two = source(&text, TokenOptions { seed: 2, ..OPTIONS });
    let starts = |source: &TokenSource, epoch: u64| -> Vec<u64> {
        let single = TokenOptions { micro_batch: 1, ..OPTIONS };
        assert_eq!(OPTIONS.context, single.context);
        (0..source.windows())
            .map(|index| {
                let sequence = epoch * source.windows() + index;
                let (_, position) = source.position(sequence / 3, (sequence % 3) as usize);
                assert_eq!((position.epoch, position.index), (epoch, index));
                position.start
            })
            .collect()
    };
    assert_ne!(starts(&one, 0), starts(&one, 1));
    assert_ne!(starts(&one, 0), starts(&two, 0));
    let offsets: HashSet<u64> = (0..50).map(|epoch| starts(&one, epoch)[0] % 8).collect();
    assert_eq!(offsets.len(), 8, "every alignment of the windows comes up");
}

#[test]
fn validation_is_spread_over_the_validation_split_for_every_seed() {
    let text = numbers(4000);
    let source = source(&text, OPTIONS);
    let other = self::source(&text, TokenOptions { seed: 99, ..OPTIONS });
    let held_out: Vec<u32> = text[3000..].iter().map(|byte| u32::from(*byte)).collect();
    let mut starts = Vec::new();
    for index in 0..4 {
        let mut batch = MicroBatch::default();
        let mut again = MicroBatch::default();
        source.validation(index, &mut batch).unwrap();
        other.validation(index, &mut again).unwrap();
        assert_eq!(batch, again);
        for (input, target) in rows(&batch) {
            let start = held_out.windows(8).position(|window| window == input).unwrap();
            assert_eq!(held_out[start + 1..=start + 8], target);
            starts.push(start);
        }
    }
    assert_eq!((starts[0], starts[11]), (0, 1000 - 9), "from the first token to the last");
    assert!(starts.windows(2).all(|pair| (90..=91).contains(&(pair[1] - pair[0]))), "{starts:?}");
    let refused = source.validation(4, &mut MicroBatch::default()).unwrap_err();
    assert_eq!(refused.to_string(), "there is no validation micro-batch 4: there are 4");
}

#[test]
fn the_memory_of_a_micro_batch_is_reused() {
    let source = source(&numbers(4000), OPTIONS);
    let mut batch = MicroBatch::default();
    source.train(0, &mut batch).unwrap();
    let before = (batch.inputs.tokens().unwrap().as_ptr(), batch.targets.tokens().unwrap().as_ptr());
    source.train(1, &mut batch).unwrap();
    source.validation(0, &mut batch).unwrap();
    assert_eq!((batch.inputs.tokens().unwrap().as_ptr(), batch.targets.tokens().unwrap().as_ptr()), before);
}

#[test]
fn splits_that_are_too_short_are_refused_with_the_figures() {
    let table: [(TokenOptions, f64, &str); 9] = [
        (
            TokenOptions { context: 30, ..OPTIONS },
            0.25,
            "the validation split has 25 of the corpus's 100 tokens, and one sequence of context 30 needs 31",
        ),
        (
            TokenOptions { context: 30, ..OPTIONS },
            0.9,
            "the training split has 10 of the corpus's 100 tokens, and one sequence of context 30 needs 31",
        ),
        (TokenOptions { context: 0, ..OPTIONS }, 0.25, "a micro-batch of 3 rows of 0 values is invalid"),
        (TokenOptions { micro_batch: 0, ..OPTIONS }, 0.25, "a micro-batch of 0 rows of 8 values is invalid"),
        (
            TokenOptions { micro_batch: usize::MAX, ..OPTIONS },
            0.25,
            "a micro-batch of 18446744073709551615 rows of 8 values is invalid",
        ),
        (OPTIONS, 1.0, "the validation fraction 1 is not between 0 and 1, both excluded"),
        (OPTIONS, f64::NAN, "the validation fraction NaN is not between 0 and 1, both excluded"),
        (
            TokenOptions { micro_batch: 10, order: OrderKind::Sequential, ..OPTIONS },
            0.25,
            "in sequential order one micro-batch needs a file with 81 tokens, and none has as many",
        ),
        (
            TokenOptions { vocabulary: 58, ..OPTIONS },
            0.25,
            "memory: token 59 at position 4 is not below the vocabulary of 58: the tokenizer has more, for which \
             model.resize_vocabulary = true adds rows to the embedding of model.from",
        ),
    ];
    for (options, fraction, expected) in table {
        let refused = cut(&numbers(100), fraction, options).unwrap_err();
        assert_eq!(refused.to_string(), expected);
    }
}

#[test]
fn the_fingerprint_depends_on_the_tokens() {
    let text = numbers(4000);
    let mut changed = text.clone();
    changed[2000] ^= 1;
    let base = source(&text, OPTIONS).fingerprint().unwrap();
    assert_eq!(source(&text, TokenOptions { seed: 2, ..OPTIONS }).fingerprint().unwrap(), base);
    assert_ne!(source(&changed, OPTIONS).fingerprint().unwrap(), base);
}

#[test]
fn bigrams_are_evaluated_on_the_targets_of_validation() {
    let text = include_bytes!("windows.rs");
    let source = source(text, OPTIONS);
    let train = &text[..source.splits().next().unwrap().training.range.end as usize];
    let mut model = Bigrams::default();
    // Calls of one byte: pairs across calls must be counted.
    train.iter().for_each(|byte| model.count([*byte]));
    let (mut sum, mut count) = (0.0, 0.0);
    let mut batch = MicroBatch::default();
    for index in 0..source.validation_micro_batches() {
        source.validation(index, &mut batch).unwrap();
        let targets = batch.targets.tokens().unwrap();
        for (input, target) in batch.inputs.tokens().unwrap().iter().zip(targets) {
            sum -= model.probability(*input as u8, *target as u8).ln();
            count += 1.0;
        }
    }
    let entropy = source.bigram_entropy().unwrap().unwrap();
    assert!((entropy - sum / count).abs() < 1e-12, "{entropy} {}", sum / count);
    assert!((1.0..4.0).contains(&entropy), "a program's text has this order of magnitude: {entropy}");
}

#[test]
fn bigram_probabilities_match_the_formula() {
    let mut model = Bigrams::default();
    model.count(*b"abab");
    model.count(*b"c");
    // Bytes: a 2, b 2, c 1 of 5; pairs: ab 2, ba 1, bc 1.
    let alone = |n: f64| (n + 1.0) / 261.0;
    let table = [
        (b'a', b'b', (2.0 + alone(2.0)) / 3.0),
        (b'b', b'c', (1.0 + alone(1.0)) / 3.0),
        (b'b', b'b', alone(2.0) / 3.0),
        (b'c', b'a', alone(2.0)),
        (b'z', b'z', alone(0.0)),
    ];
    for (previous, byte, expected) in table {
        assert!((model.probability(previous, byte) - expected).abs() < 1e-15, "{previous} {byte}");
    }
    for previous in 0..=255 {
        let sum: f64 = (0..=255).map(|byte| model.probability(previous, byte)).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{previous}: {sum}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_token_is_a_target_twice_in_an_epoch(
        length in 20_usize..3000,
        context in 1_usize..40,
        micro_batch in 1_usize..7,
        seed: u64,
        epoch in 0_u64..1000,
    ) {
        let options = TokenOptions { context, micro_batch, seed, ..OPTIONS };
        let Ok(source) = cut(&vec![b'x'; length], 0.5, options) else {
            prop_assert!(length / 2 <= context);
            return Ok(());
        };
        let mut starts: Vec<u64> = (0..source.windows())
            .map(|index| {
                let sequence = epoch * source.windows() + index;
                source.position(sequence / micro_batch as u64, (sequence % micro_batch as u64) as usize).1.start
            })
            .collect();
        starts.sort_unstable();
        prop_assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= context as u64), "{:?}", starts);
        let end = source.splits().next().unwrap().training.range.end;
        prop_assert!(starts.iter().all(|start| start + (context as u64) < end));
        // Nearly all of the text is used.
        prop_assert!(source.windows() * context as u64 + 2 * context as u64 >= end);
    }
}

/// Each source of a sequential mixture is read in its own order, independently of the others.
#[test]
fn a_sequential_mixture_reads_each_source_in_order() {
    let text = numbers(3000);
    let component = |weight: f64| {
        let corpus = Corpus::in_memory(text.clone()).unwrap();
        Component { split: Split::at_end(corpus.into(), 0.25).unwrap(), weight }
    };
    let options = TokenOptions { order: OrderKind::Sequential, ..OPTIONS };
    let mixed = TokenSource::new(vec![component(3.0), component(1.0)], Tokenizer::Bytes, &options).unwrap();
    let mut next = [0, 0];
    for located in (0..150).map(|n| mixed.position(n / 3, (n % 3) as usize)) {
        let (component, position) = located;
        assert_eq!((position.epoch, position.start), (0, next[component]));
        next[component] += 8;
    }
    assert!(next[0] > 2 * next[1] && next[1] > 0, "{next:?}");
}

/// Tests the mean bytes per training token, and the number of non-overlapping validation sequences.
#[test]
fn texts_have_a_length_in_bytes_and_a_number_of_sequences() {
    let text = numbers(4000);
    let one = source(&text, OPTIONS);
    assert_eq!(one.training_bytes_per_token().unwrap(), Some(1.0));
    assert_eq!(one.bytes_per_token().unwrap(), Some(1.0));
    let sequential = source(&text, TokenOptions { order: OrderKind::Sequential, ..OPTIONS });
    assert_eq!(sequential.validation_sequences(), [(1000 - 1) / 8]);
}
