use tensor::ops::cross_entropy::{self, IGNORED, Mean};
use tensor::ops::{linear_cross_entropy, soft_cross_entropy};
use tensor::{DType, Tensor};

use crate::reference;
use crate::support::{bits, close, devices, read, tensor};
use crate::trial::Trial;

/// Rows and vocabulary: short rows, odd ones, rows that fit in a block's shared memory, and longer rows.
const SIZES: [[usize; 2]; 10] = [
    [1, 2],
    [1, 33],
    [7, 5],
    [70, 256],
    [3, 1000],
    [200, 130],
    [5, 8191],
    [3, 50_257],
    [2, 50_304],
    [3, 60_001],
];

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (number, size) in SIZES.into_iter().enumerate() {
        loss_and_gradient(trial, size, [1.0, 0.125][number % 2], None);
        loss_and_gradient(trial, size, 0.5, Some([2, 3, 1][number % 3]));
    }
    for vocab in [300, 50_304, 70_003] {
        forms(trial, vocab);
    }
}

/// Tests loss and gradient. With `ignored` n, the targets 0, n, 2n… are ignored.
fn loss_and_gradient(trial: &mut Trial<'_>, [rows, vocab]: [usize; 2], scale: f32, ignored: Option<usize>) {
    trial.label(format!("{rows}x{vocab} scale {scale} ignored {ignored:?}"));
    let (logits, logits_wide) = trial.operand("logits", [rows, vocab]);
    let mut ids = trial.indices("targets", rows, vocab);
    if let Some(every) = ignored {
        ids.iter_mut().step_by(every).for_each(|id| *id = IGNORED);
    }
    let targets = tensor(&trial.device, &ids, [rows]);
    let result = cross_entropy::forward(logits, &targets, scale, true).unwrap();
    let value = |logits: &[f64]| f64::from(scale) * mean_of(logits, &ids);
    // The loss is f32 for all types of scores.
    trial.single_output("loss", &result.loss, || vec![value(&logits_wide)]);
    let gradient = result.gradient.unwrap();
    trial.output("gradient", &gradient, || gradient_of(&logits_wide, &ids, f64::from(scale)));
    if ignored.is_none() && vocab <= 1000 {
        trial.gradient("gradient by differences", &gradient, (&logits_wide, 0.0), value);
    }
    if ignored.is_some() && trial.compares() {
        let gradient = read(&gradient);
        let mut without = ids.iter().zip(gradient.chunks(vocab)).filter(|(id, _)| **id == IGNORED);
        let zeros = without.all(|(_, slopes)| slopes.iter().all(|slope| *slope == 0.0));
        assert!(zeros, "{}, {}", trial.what("gradient of ignored targets"), trial.name());
    }
}

/// Returns the mean over rows that are not ignored; 0 if all are ignored.
fn mean_of(logits: &[f64], targets: &[u32]) -> f64 {
    let rows = logits.chunks(logits.len() / targets.len()).zip(targets);
    let (scores, targets): (Vec<&[f64]>, Vec<u32>) =
        rows.filter(|(_, target)| **target != IGNORED).map(|(row, target)| (row, *target)).unzip();
    if targets.is_empty() { 0.0 } else { reference::cross_entropy(&scores.concat(), &targets) }
}

/// Returns scale · (softmax − one-hot) / number of rows not ignored, and 0 in ignored rows.
fn gradient_of(logits: &[f64], targets: &[u32], scale: f64) -> Vec<f64> {
    let vocab = logits.len() / targets.len();
    let weight = scale / targets.iter().filter(|target| **target != IGNORED).count() as f64;
    let row = |(row, target): (&[f64], &u32)| {
        if *target == IGNORED {
            return vec![0.0; vocab];
        }
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        let hot = |i: usize| f64::from(u8::from(i == *target as usize));
        row.iter()
            .enumerate()
            .map(|(i, x)| weight * ((x - largest).exp() / total - hot(i)))
            .collect::<Vec<_>>()
    };
    logits.chunks(vocab).zip(targets).flat_map(row).collect()
}

/// Tests that the loss has the same bits if the gradient overwrites the scores, is a new tensor, or is not
/// computed.
fn forms(trial: &mut Trial<'_>, vocab: usize) {
    trial.label(format!("3x5x{vocab}"));
    let (logits, before) = trial.operand("logits", [3, 5, vocab]);
    let targets = tensor(&trial.device, &trial.indices("targets", 15, vocab), [3, 5]);
    let without = cross_entropy::forward(logits.clone(), &targets, 0.5, false).unwrap();
    assert!(without.gradient.is_none());
    trial.result("loss without gradient", &without.loss);
    let apart = cross_entropy::forward(logits.clone(), &targets, 0.5, true).unwrap();
    let apart_gradient = apart.gradient.unwrap();
    trial.same("loss apart", &apart.loss, &without.loss);
    trial.result("gradient apart", &apart_gradient);
    if trial.compares() {
        assert_eq!(read(&logits), before, "scores that others look at stay");
    }
    let address = logits.region().buffer.address();
    let overwriting = cross_entropy::forward(logits, &targets, 0.5, true).unwrap();
    let gradient = overwriting.gradient.unwrap();
    if trial.compares() {
        assert_eq!(gradient.region().buffer.address(), address);
        assert_ne!(apart_gradient.region().buffer.address(), address);
    }
    assert!(gradient.is_unique());
    trial.same("loss of overwritten scores", &overwriting.loss, &apart.loss);
    trial.same("gradient of overwritten scores", &gradient, &apart_gradient);
}

#[test]
fn scores_of_any_size_give_finite_losses() {
    for case in devices().into_iter().filter(|case| case.dtype == DType::F32) {
        let logits = case.tensor(&[1e30, -1e30, 0.0, 3e4, 3e4 + 1.0, -3e4], [2, 3]);
        let targets = tensor(&case.device, &[0u32, 1], [2]);
        let result = cross_entropy::forward(logits, &targets, 1.0, true).unwrap();
        let expected = (1.0 + (-1.0f64).exp()).ln() / 2.0;
        close("loss", &read(&result.loss), &[expected]);
        let p = 1.0 / (1.0 + 1f64.exp());
        close("gradient", &read(&result.gradient.unwrap()), &[0.0, 0.0, 0.0, p / 2.0, -p / 2.0, 0.0]);
    }
}

/// Tests a mean with an explicit divisor. With the call's own number of rows, bits are equal to the mean over
/// them; with four times as many, to a quarter of it.
#[test]
fn a_mean_has_the_divisor_that_is_demanded() {
    for case in devices() {
        let (rows, classes) = (40, 130);
        let (x, _) = case.operand("x", [rows, 24]);
        let (weight, _) = case.operand("weight", [classes, 24]);
        let (logits, _) = case.operand("logits", [rows, classes]);
        let mut ids = case.indices("targets", rows, classes);
        ids.iter_mut().step_by(3).for_each(|id| *id = IGNORED);
        let own = ids.iter().filter(|id| **id != IGNORED).count() as u32;
        let targets = tensor(&case.device, &ids, [rows]);
        let operands = linear_cross_entropy::Operands { x, weight, targets: targets.clone() };
        let settings = linear_cross_entropy::Settings { scale: 0.5, soft_cap: None, pieces: 2 };
        let factor = tensor(&case.device, &[1.0f32], [1]);
        // The loss and its gradient by each operator.
        let run = |count: Option<u32>| {
            let count = count.map(|count| tensor(&case.device, &[count], []));
            let mean = Mean { scale: 0.5, count: count.as_ref() };
            let hard = cross_entropy::forward_mean(logits.clone(), &targets, mean, true, None).unwrap();
            let soft = soft_cross_entropy::forward(logits.clone(), &targets, 0.1, mean, true).unwrap();
            let linear = linear_cross_entropy::forward(&operands, &settings, count.as_ref()).unwrap();
            let gradient =
                linear_cross_entropy::backward(&operands, &linear.statistics, &settings, &factor, true, None);
            [
                (hard.loss, hard.gradient.unwrap()),
                (soft.loss, soft.gradient.unwrap()),
                (linear.loss, gradient.unwrap().unwrap()),
            ]
        };
        let plain = run(None);
        let equal = run(Some(own));
        let quarter = run(Some(4 * own));
        for (index, (loss, gradient)) in plain.iter().enumerate() {
            let what = format!("operator {index}, {}", case.name());
            assert_eq!(
                (bits(loss), bits(gradient)),
                (bits(&equal[index].0), bits(&equal[index].1)),
                "{what}"
            );
            let fourth = |values: &Tensor| read(values).iter().map(|value| value / 4.0).collect::<Vec<_>>();
            assert_eq!(read(&quarter[index].0), fourth(loss), "{what}");
            case.close(&what, &read(&quarter[index].1), &fourth(gradient));
        }
        let wrong = tensor(&case.device, &[own, own], [2]);
        let mean = Mean { scale: 1.0, count: Some(&wrong) };
        assert!(cross_entropy::forward_mean(logits, &targets, mean, true, None).is_err());
    }
}
