//! Tests of synthetic micro-batches.

use std::sync::Arc;

use data::{CycledSource, MicroBatch, Source, SyntheticKind, SyntheticOptions, SyntheticSource};

const TOKENS: SyntheticOptions = SyntheticOptions {
    kind: SyntheticKind::Tokens { vocabulary: 50_257, context: 127 },
    micro_batch: 9,
    seed: 1,
    validation_micro_batches: 3,
};
const REGRESSION: SyntheticOptions =
    SyntheticOptions { kind: SyntheticKind::Regression { inputs: 3, outputs: 5 }, micro_batch: 7, ..TOKENS };

const IMAGES: SyntheticOptions = SyntheticOptions {
    kind: SyntheticKind::Images { channels: 3, size: 12, classes: 4 },
    micro_batch: 6,
    ..TOKENS
};

fn train(options: SyntheticOptions, number: u64) -> MicroBatch {
    let mut batch = MicroBatch::default();
    SyntheticSource::new(options).unwrap().train(number, &mut batch).unwrap();
    batch
}

fn validation(options: SyntheticOptions, index: u64) -> MicroBatch {
    let mut batch = MicroBatch::default();
    SyntheticSource::new(options).unwrap().validation(index, &mut batch).unwrap();
    batch
}

#[test]
fn every_number_has_a_different_micro_batch() {
    for options in [TOKENS, REGRESSION, IMAGES] {
        let other_seed = SyntheticOptions { seed: 2, ..options };
        assert_eq!(train(options, 5), train(options, 5));
        assert_ne!(train(options, 5), train(options, 6));
        assert_ne!(train(options, 5), train(options, 5 + (1 << 32)));
        assert_ne!(train(options, 5), train(other_seed, 5));
        assert_ne!(train(options, 1), validation(options, 1));
        assert_eq!(validation(options, 1), validation(other_seed, 1));
        assert_ne!(validation(options, 1), validation(options, 2));
    }
}

#[test]
fn tokens_are_uniform_and_targets_follow_their_inputs() {
    let mut sum = 0.0;
    for number in 0..20 {
        let batch = train(TOKENS, number);
        assert_eq!(
            (batch.inputs.shape.as_slice(), batch.targets.shape.as_slice()),
            (&[9, 127][..], &[9, 127][..])
        );
        let inputs = batch.inputs.tokens().unwrap().chunks_exact(127);
        for (input, target) in inputs.zip(batch.targets.tokens().unwrap().chunks_exact(127)) {
            assert_eq!(input[1..], target[..126]);
            assert!(target.iter().all(|token| *token < 50_257));
            sum += target.iter().map(|token| f64::from(*token)).sum::<f64>();
        }
    }
    let count = 20.0 * 9.0 * 127.0;
    let middle = 50_256.0 / 2.0;
    // Five standard errors of the mean of a uniform distribution.
    assert!((sum / count - middle).abs() < 5.0 * 50_257.0 / (12.0_f64 * count).sqrt(), "{}", sum / count);
}

#[test]
fn regression_targets_are_the_documented_function_of_normal_inputs() {
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
    let source = SyntheticSource::new(REGRESSION).unwrap();
    let mut batch = MicroBatch::default();
    for number in 0..1000 {
        source.train(number, &mut batch).unwrap();
        assert_eq!(
            (batch.inputs.shape.as_slice(), batch.targets.shape.as_slice()),
            (&[7, 3][..], &[7, 5][..])
        );
        let inputs = batch.inputs.floats().unwrap();
        for (x, y) in inputs.chunks_exact(3).zip(batch.targets.floats().unwrap().chunks_exact(5)) {
            for (j, y) in y.iter().enumerate() {
                let expected = (f64::from(x[j % 3]) + f64::from(x[(j + 1) % 3])).sin();
                assert!((f64::from(*y) - expected).abs() < 1e-6);
            }
        }
        sum += inputs.iter().map(|x| f64::from(*x)).sum::<f64>();
        squares += inputs.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        count += inputs.len() as f64;
    }
    // Five standard errors over 21,000 draws.
    assert!(
        (sum / count).abs() < 0.035 && (squares / count - 1.0).abs() < 0.05,
        "{} {}",
        sum / count,
        squares / count
    );
}

#[test]
fn an_image_is_a_function_of_its_number() {
    let pairs = SyntheticOptions { micro_batch: 2, ..IMAGES };
    let six = train(IMAGES, 1);
    assert_eq!(six.inputs.shape, [6, 12, 12, 3]);
    assert_eq!(six.targets.shape, [6]);
    for position in 0..3 {
        let two = train(pairs, 3 + position as u64);
        let image = 12 * 12 * 3;
        let from = 2 * position * image;
        let to = (2 * position + 2) * image;
        assert_eq!(two.inputs.pixels().unwrap(), &six.inputs.pixels().unwrap()[from..to]);
        assert_eq!(
            two.targets.tokens().unwrap(),
            &six.targets.tokens().unwrap()[2 * position..2 * position + 2]
        );
    }
}

fn levels(batch: &MicroBatch) -> Vec<f32> {
    batch.inputs.pixels().unwrap().iter().map(|level| f32::from(*level)).collect()
}

/// Classifying by the nearest class mean of training images is right for most validation images.
#[test]
fn classes_of_synthetic_images_can_be_told_apart() {
    let classes = 4;
    let image = 12 * 12 * 3;
    let mut means = vec![vec![0.0_f32; image]; classes];
    let mut counts = vec![0.0_f32; classes];
    for number in 0..100 {
        let batch = train(IMAGES, number);
        let images = levels(&batch);
        let images = images.chunks_exact(image);
        for (pixels, class) in images.zip(batch.targets.tokens().unwrap()) {
            let class = *class as usize;
            counts[class] += 1.0;
            let count = counts[class];
            means[class].iter_mut().zip(pixels).for_each(|(mean, pixel)| *mean += (pixel - *mean) / count);
        }
    }
    assert!(counts.iter().all(|count| *count > 100.0), "{counts:?}");
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
    for index in 0..3 {
        let batch = validation(IMAGES, index);
        let images = levels(&batch);
        let images = images.chunks_exact(image);
        for (pixels, class) in images.zip(batch.targets.tokens().unwrap()) {
            let nearest = (0..classes)
                .min_by(|a, b| distance(&means[*a], pixels).total_cmp(&distance(&means[*b], pixels)));
            assert_eq!(nearest, Some(*class as usize));
        }
    }
}

#[test]
fn a_cycle_repeats_its_first_micro_batches() {
    for options in [IMAGES, TOKENS, REGRESSION] {
        let source = Arc::new(SyntheticSource::new(options).unwrap());
        let cycle = CycledSource::new(source.clone(), 3);
        let mut batch = MicroBatch::default();
        for number in [0, 1, 2, 3, 4, 5, 301, 1] {
            cycle.train(number, &mut batch).unwrap();
            assert_eq!(batch, train(options, number % 3));
        }
        for index in [2, 0, 2] {
            cycle.validation(index, &mut batch).unwrap();
            assert_eq!(batch, validation(options, index));
        }
        assert!(cycle.validation(3, &mut batch).is_err());
        assert_eq!(cycle.shape(), source.shape());
        assert_eq!(cycle.normalisation(), source.normalisation());
    }
}

#[test]
fn a_micro_batch_can_change_its_type() {
    let mut batch = train(TOKENS, 0);
    SyntheticSource::new(REGRESSION).unwrap().train(0, &mut batch).unwrap();
    assert_eq!(batch, train(REGRESSION, 0));
    assert_eq!(batch.inputs.tokens().unwrap_err().to_string(), "the array holds f32 values, not u32");
}

#[test]
fn invalid_options_are_refused() {
    let with = |kind| SyntheticOptions { kind, ..TOKENS };
    let table = [
        (with(SyntheticKind::Tokens { vocabulary: 0, context: 4 }), "a vocabulary of 0 tokens is invalid"),
        (
            with(SyntheticKind::Regression { inputs: 3, outputs: 0 }),
            "a micro-batch of 9 rows of 0 values is invalid",
        ),
        (
            with(SyntheticKind::Regression { inputs: usize::MAX, outputs: 1 }),
            "a micro-batch of 9 rows of 18446744073709551615 values is invalid",
        ),
        (
            with(SyntheticKind::Images { channels: 3, size: 12, classes: 0 }),
            "0 classes of images are invalid",
        ),
        (
            with(SyntheticKind::Images { channels: 0, size: 12, classes: 2 }),
            "a micro-batch of 9 rows of 0 values is invalid",
        ),
        (SyntheticOptions { micro_batch: 0, ..TOKENS }, "a micro-batch of 0 rows of 127 values is invalid"),
    ];
    for (options, expected) in table {
        assert_eq!(SyntheticSource::new(options).unwrap_err().to_string(), expected);
    }
    let refused =
        SyntheticSource::new(TOKENS).unwrap().validation(3, &mut MicroBatch::default()).unwrap_err();
    assert_eq!(refused.to_string(), "there is no validation micro-batch 3: there are 3");
}
