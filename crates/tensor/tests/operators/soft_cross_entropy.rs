use tensor::ops::cross_entropy::{self, IGNORED, Mean};
use tensor::ops::soft_cross_entropy::{self, SHARES};

use crate::support::{bits, close, devices, read, tensor};

/// Rows, classes.
const SIZES: [[usize; 2]; 5] = [[1, 2], [7, 5], [3, 1000], [70, 10], [5, 700]];
const SMOOTHINGS: [f32; 3] = [0.0, 0.1, 0.9];

/// The mean of −Σ q ln softmax, with q of the documentation.
fn reference(logits: &[f64], targets: &[[u32; 3]], smoothing: f64) -> f64 {
    let classes = logits.len() / targets.len();
    let mut sum = 0.0;
    let counted: Vec<_> = logits.chunks(classes).zip(targets).filter(|(_, t)| t[0] != IGNORED).collect();
    for (row, [class, other, share]) in &counted {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let normalizer = row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln() + largest;
        let share = f64::from(*share) / f64::from(SHARES);
        for (at, x) in row.iter().enumerate() {
            let hot = |class: u32| f64::from(u8::from(at == class as usize));
            let hard = share * hot(*class) + (1.0 - share) * hot(*other);
            let q = (1.0 - smoothing) * hard + smoothing / classes as f64;
            sum += q * (normalizer - x);
        }
    }
    if counted.is_empty() { 0.0 } else { sum / counted.len() as f64 }
}

#[test]
fn loss_and_gradient_match_the_reference() {
    for case in devices() {
        for [rows, classes] in SIZES {
            for (smoothing, mixed) in SMOOTHINGS.into_iter().flat_map(|s| [(s, false), (s, true)]) {
                let what = format!("{rows}x{classes}, smoothing {smoothing}, mixed {mixed}");
                let (logits, wide) = case.operand("logits", [rows, classes]);
                let (own, other) = (case.indices("own", rows, classes), case.indices("other", rows, classes));
                let shares = case.indices("shares", rows, SHARES as usize + 1);
                let mut targets: Vec<[u32; 3]> =
                    (0..rows)
                        .map(|at| {
                            if mixed { [own[at], other[at], shares[at]] } else { [own[at], own[at], SHARES] }
                        })
                        .collect();
                if rows > 3 {
                    targets[2][0] = IGNORED;
                }
                let shares = match mixed {
                    true => tensor(&case.device, targets.as_flattened(), [rows, 3]),
                    false => {
                        let own: Vec<u32> = targets.iter().map(|target| target[0]).collect();
                        tensor(&case.device, &own, [rows])
                    }
                };
                let value = |logits: &[f64]| 0.5 * reference(logits, &targets, f64::from(smoothing));
                let without = soft_cross_entropy::forward(
                    logits.clone(),
                    &shares,
                    smoothing,
                    Mean::of_rows(0.5),
                    false,
                )
                .unwrap();
                let apart =
                    soft_cross_entropy::forward(logits.clone(), &shares, smoothing, Mean::of_rows(0.5), true)
                        .unwrap();
                let overwriting =
                    soft_cross_entropy::forward(logits, &shares, smoothing, Mean::of_rows(0.5), true)
                        .unwrap();
                close(&format!("{what}, {}", case.name()), &read(&overwriting.loss), &[value(&wide)]);
                assert_eq!(bits(&overwriting.loss), bits(&without.loss), "{what}");
                let gradient = overwriting.gradient.unwrap();
                assert_eq!(bits(&gradient), bits(&apart.gradient.unwrap()), "{what}");
                case.is_gradient(&what, &read(&gradient), &wide, value);
            }
        }
    }
}

#[test]
fn a_hard_target_has_the_loss_of_cross_entropy() {
    for case in devices() {
        let (logits, _) = case.operand("logits", [40, 100]);
        let ids = tensor(&case.device, &case.indices("targets", 40, 100), [40]);
        let soft = soft_cross_entropy::forward(logits.clone(), &ids, 0.0, Mean::of_rows(1.0), true).unwrap();
        let hard = cross_entropy::forward(logits, &ids, 1.0, true).unwrap();
        close("loss", &read(&soft.loss), &read(&hard.loss));
        case.close("gradient", &read(&soft.gradient.unwrap()), &read(&hard.gradient.unwrap()));
    }
}

#[test]
fn refusals() {
    let case = &devices()[0];
    let logits = || case.tensor(&[0.0; 6], [2, 3]);
    for (targets, expected) in [
        (vec![0_u32, 7], "index 7 is outside 0..3"),
        (vec![0, 1, 0, 1, 7, 0], "index 7 is outside 0..3"),
        (vec![0; 4], "soft_cross_entropy.forward: targets"),
    ] {
        let count = targets.len();
        let targets = tensor(&case.device, &targets, [count]);
        let refused = soft_cross_entropy::forward(logits(), &targets, 0.1, Mean::of_rows(1.0), true)
            .unwrap_err()
            .to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}
