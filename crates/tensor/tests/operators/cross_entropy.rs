use tensor::ops::cross_entropy::{self, IGNORED, Mean};
use tensor::ops::{linear_cross_entropy, soft_cross_entropy};
use tensor::{DType, Tensor};

use crate::reference;
use crate::support::{Case, bits, close, devices, read, tensor};

/// Rows, vocab: short rows, odd ones, rows that fit in a block's shared memory, and longer ones.
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

fn targets(case: &Case, rows: usize, vocab: usize) -> (Tensor, Vec<u32>) {
    let ids = case.indices("targets", rows, vocab);
    (tensor(&case.device, &ids, [rows]), ids)
}

#[test]
fn loss_and_gradient() {
    for case in devices() {
        for ([rows, vocab], scale) in SIZES.into_iter().zip([1.0f32, 0.125].into_iter().cycle()) {
            let what = format!("{rows}x{vocab} scale {scale}");
            let (logits, logits_wide) = case.operand("logits", [rows, vocab]);
            let (target, ids) = targets(&case, rows, vocab);
            let result = cross_entropy::forward(logits, &target, scale, true).unwrap();
            let value = |logits: &[f64]| f64::from(scale) * reference::cross_entropy(logits, &ids);
            // The loss is f32 for all types of scores.
            close(&format!("{what}, {}", case.name()), &read(&result.loss), &[value(&logits_wide)]);
            let gradient = read(&result.gradient.unwrap());
            let exact: Vec<f64> = gradient_of(&logits_wide, &ids, f64::from(scale));
            case.close(&what, &gradient, &exact);
            if vocab <= 1000 {
                case.is_gradient(&what, &gradient, &logits_wide, value);
            }
        }
    }
}

/// scale · (softmax − one-hot) / rows.
fn gradient_of(logits: &[f64], targets: &[u32], scale: f64) -> Vec<f64> {
    let vocab = logits.len() / targets.len().max(1);
    let weight = scale / targets.len() as f64;
    let row = |(row, target): (&[f64], &u32)| {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        let hot = |i: usize| f64::from(u8::from(i == *target as usize));
        row.iter()
            .enumerate()
            .map(|(i, x)| weight * ((x - largest).exp() / total - hot(i)))
            .collect::<Vec<_>>()
    };
    logits.chunks(vocab.max(1)).zip(targets).flat_map(row).collect()
}

#[test]
fn in_place_apart_and_without_gradient_give_the_same_bits() {
    for case in devices() {
        for vocab in [300, 50_304, 70_003] {
            let (logits, before) = case.operand("logits", [3, 5, vocab]);
            let ids = case.indices("targets", 15, vocab);
            let targets = tensor(&case.device, &ids, [3, 5]);
            let without = cross_entropy::forward(logits.clone(), &targets, 0.5, false).unwrap();
            assert!(without.gradient.is_none());
            let apart = cross_entropy::forward(logits.clone(), &targets, 0.5, true).unwrap();
            assert_eq!(read(&logits), before, "scores that others look at stay");
            let address = logits.region().buffer.address();
            let in_place = cross_entropy::forward(logits, &targets, 0.5, true).unwrap();
            let (apart_gradient, gradient) = (apart.gradient.unwrap(), in_place.gradient.unwrap());
            assert_eq!(gradient.region().buffer.address(), address);
            assert_ne!(apart_gradient.region().buffer.address(), address);
            assert!(gradient.is_unique());
            assert_eq!(bits(&gradient), bits(&apart_gradient));
            assert_eq!(bits(&in_place.loss), bits(&apart.loss));
            assert_eq!(bits(&in_place.loss), bits(&without.loss));
        }
    }
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

#[test]
fn ignored_targets_have_no_loss_and_no_gradient() {
    for case in devices() {
        for ([rows, vocab], every) in SIZES.into_iter().zip([2, 3, 1].into_iter().cycle()) {
            let what = format!("{rows}x{vocab} every {every}");
            let (logits, logits_wide) = case.operand("logits", [rows, vocab]);
            let (_, mut ids) = targets(&case, rows, vocab);
            ids.iter_mut().step_by(every).for_each(|id| *id = IGNORED);
            let valid_rows: Vec<usize> = (0..rows).filter(|row| ids[*row] != IGNORED).collect();
            let scores: Vec<f64> =
                valid_rows.iter().flat_map(|row| logits_wide[row * vocab..][..vocab].to_vec()).collect();
            let targets: Vec<u32> = valid_rows.iter().map(|row| ids[*row]).collect();
            let result =
                cross_entropy::forward(logits, &tensor(&case.device, &ids, [rows]), 0.5, true).unwrap();
            let loss =
                if valid_rows.is_empty() { 0.0 } else { 0.5 * reference::cross_entropy(&scores, &targets) };
            close(&format!("{what}, {}", case.name()), &read(&result.loss), &[loss]);
            let gradient = read(&result.gradient.unwrap());
            let (mut own, mut exact) = (vec![], gradient_of(&scores, &targets, 0.5));
            for (row, gradient) in gradient.chunks(vocab).enumerate() {
                match valid_rows.contains(&row) {
                    true => own.extend_from_slice(gradient),
                    false => assert!(gradient.iter().all(|slope| *slope == 0.0), "{what}"),
                }
            }
            exact.truncate(own.len());
            case.close(&what, &own, &exact);
        }
    }
}

/// The divisor of a mean may be the number of rows of several calls: with the call's own number the bits are
/// those of the mean over its rows, and with four times as many a quarter of them.
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
        let (plain, equal, quarter) = (run(None), run(Some(own)), run(Some(4 * own)));
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
