use tensor::Tensor;
use tensor::ops::cross_entropy::{self, IGNORED, Mean};
use tensor::ops::soft_cross_entropy::{self, SHARES};

use crate::support::{devices, read, tensor};
use crate::trial::Trial;

/// Rows and classes.
const SIZES: [[usize; 2]; 5] = [[1, 2], [7, 5], [3, 1000], [70, 10], [5, 700]];
const SMOOTHINGS: [f32; 3] = [0.0, 0.1, 0.9];

/// Computes the mean of −Σ q ln softmax, with the distribution q as the operator documents it.
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

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for size in SIZES {
        for smoothing in SMOOTHINGS {
            [false, true].into_iter().for_each(|mixed| loss_and_gradient(trial, size, smoothing, mixed));
        }
    }
    hard_targets(trial);
}

fn loss_and_gradient(trial: &mut Trial<'_>, [rows, classes]: [usize; 2], smoothing: f32, mixed: bool) {
    trial.label(format!("{rows}x{classes}, smoothing {smoothing}, mixed {mixed}"));
    let (logits, wide) = trial.operand("logits", [rows, classes]);
    let own = trial.indices("own", rows, classes);
    let other = trial.indices("other", rows, classes);
    let shares = trial.indices("shares", rows, SHARES as usize + 1);
    let target =
        |at: usize| if mixed { [own[at], other[at], shares[at]] } else { [own[at], own[at], SHARES] };
    let mut targets: Vec<[u32; 3]> = (0..rows).map(target).collect();
    if rows > 3 {
        targets[2][0] = IGNORED;
    }
    let shares = match mixed {
        true => tensor(&trial.device, targets.as_flattened(), [rows, 3]),
        false => {
            let own: Vec<u32> = targets.iter().map(|target| target[0]).collect();
            tensor(&trial.device, &own, [rows])
        }
    };
    let run = |logits: Tensor, with_gradient: bool| {
        soft_cross_entropy::forward(logits, &shares, smoothing, Mean::of_rows(0.5), with_gradient).unwrap()
    };
    let value = |logits: &[f64]| 0.5 * reference(logits, &targets, f64::from(smoothing));
    let without = run(logits.clone(), false);
    trial.result("loss without gradient", &without.loss);
    let apart = run(logits.clone(), true).gradient.unwrap();
    trial.result("gradient apart", &apart);
    let overwriting = run(logits, true);
    trial.single_output("loss", &overwriting.loss, || vec![value(&wide)]);
    trial.same("loss with gradient", &overwriting.loss, &without.loss);
    let gradient = overwriting.gradient.unwrap();
    trial.same("gradient of overwritten scores", &gradient, &apart);
    trial.gradient("gradient", &gradient, (&wide, 0.0), value);
}

/// Tests that a target of one class has the loss of plain cross-entropy.
fn hard_targets(trial: &mut Trial<'_>) {
    trial.label("40x100".to_owned());
    let (logits, _) = trial.operand("logits", [40, 100]);
    let ids = tensor(&trial.device, &trial.indices("targets", 40, 100), [40]);
    let soft = soft_cross_entropy::forward(logits.clone(), &ids, 0.0, Mean::of_rows(1.0), true).unwrap();
    let hard = cross_entropy::forward(logits, &ids, 1.0, true).unwrap();
    trial.single_output("loss of hard targets", &soft.loss, || read(&hard.loss));
    let [soft, hard] = [soft.gradient.unwrap(), hard.gradient.unwrap()];
    trial.output("gradient of hard targets", &soft, || read(&hard));
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
