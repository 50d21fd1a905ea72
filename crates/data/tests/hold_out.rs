//! Tests of holding out conversations or pairs for validation.

use data::{
    Answered, ChatOptions, ChatSource, Conversation, Error, HoldOut, Pair, PairOptions, PairSource, Source,
    ValidationSplit,
};

/// Files with 5, 1, 0 and 4 consecutive numbers.
fn files() -> Vec<Vec<u32>> {
    vec![(0..5).collect(), vec![5], Vec::new(), (6..10).collect()]
}

#[test]
fn each_split_holds_out_its_share_once() {
    for (split, fraction, expected) in [
        (ValidationSplit::End, 0.05, &[9][..]),
        (ValidationSplit::End, 0.25, &[7, 8, 9]),
        (ValidationSplit::End, 0.3, &[7, 8, 9]),
        (ValidationSplit::End, 0.0, &[]),
        (ValidationSplit::Shuffled, 0.0, &[]),
        (ValidationSplit::PerFile, 0.0, &[]),
        // The end of each file, rounded up; a file of one keeps it.
        (ValidationSplit::PerFile, 0.05, &[4, 9]),
        (ValidationSplit::PerFile, 0.5, &[2, 3, 4, 8, 9]),
        (ValidationSplit::PerFile, 0.99, &[1, 2, 3, 4, 7, 8, 9]),
    ] {
        let (training, validation) = HoldOut { split, fraction, seed: 1 }.split(files());
        assert_eq!(validation, expected, "{split:?} {fraction}");
        let rest: Vec<u32> = (0..10).filter(|number| !expected.contains(number)).collect();
        assert_eq!(training, rest, "{split:?} {fraction}");
    }
}

/// A random sample depends only on the seed, not on file boundaries.
#[test]
fn a_shuffled_split_is_a_sample_by_the_seed() {
    let held_out = |seed, files| {
        let (training, validation) =
            HoldOut { split: ValidationSplit::Shuffled, fraction: 0.25, seed }.split::<u32>(files);
        let mut all = [training.clone(), validation.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<u32>>(), "{seed}");
        assert!(training.is_sorted() && validation.is_sorted(), "{seed}");
        assert_eq!(validation.len(), 25, "{seed}");
        validation
    };
    let one_file = || vec![(0..100).collect()];
    let of_seeds: Vec<Vec<u32>> = (0..4).map(|seed| held_out(seed, one_file())).collect();
    assert!((1..4).all(|seed| of_seeds[seed] != of_seeds[0]), "{of_seeds:?}");
    assert_eq!(held_out(2, vec![(0..40).collect(), (40..100).collect()]), of_seeds[2]);
    // Not the end: some of each half.
    let early = of_seeds[0].iter().filter(|number| **number < 50).count();
    assert!((4..22).contains(&early), "{:?}", of_seeds[0]);
}

/// Without validation micro-batches nothing needs to be held out; with some, an empty split is an error.
#[test]
fn a_source_without_validation_needs_no_held_out_part() {
    let conversation = Conversation { tokens: vec![1, 2], answers: vec![false, true] };
    let answered = || Answered { tokens: vec![1, 2], answer: 1 };
    let pair = Pair { chosen: answered(), rejected: answered() };
    let context = 4;
    let micro_batch = 1;
    let seed = 1;
    for validation_micro_batches in [0, 1] {
        let chat = ChatOptions {
            context,
            micro_batch,
            seed,
            validation_micro_batches,
            repeats_validation: false,
            packs: false,
            masks: false,
            marks_tokens: false,
            groups: None,
        };
        let pairs = PairOptions {
            context,
            micro_batch,
            seed,
            validation_micro_batches,
            learns_prompts: false,
            marks_tokens: false,
            groups: None,
        };
        let figures = |source: &dyn Source| (source.held_out_sequences(), source.validation_micro_batches());
        let chat = ChatSource::new(vec![conversation.clone()], Vec::new(), chat);
        let pairs = PairSource::new(vec![pair.clone()], Vec::new(), pairs);
        for made in [chat.map(|source| figures(&source)), pairs.map(|source| figures(&source))] {
            match validation_micro_batches {
                0 => assert_eq!(made.unwrap(), (Some(0), 0)),
                _ => assert!(matches!(made, Err(Error::NoAnswers { context: 4 })), "{made:?}"),
            }
        }
    }
}
