//! The loss of scores computed slice by slice over the vocabulary.

use tensor::ops::cross_entropy::IGNORED;
use tensor::ops::linear_cross_entropy::{Operands, Settings, backward, forward};
use tensor::{DType, Tensor};

use crate::reference;
use crate::support::{Case, devices, read, tensor};
use crate::trial::Trial;

/// Rows, inputs, vocabulary, slices: one slice, odd sizes, a smaller last slice, more slices than fit.
const SIZES: [([usize; 3], usize); 6] = [
    ([1, 8, 2], 1),
    ([3, 5, 33], 4),
    ([7, 16, 130], 2),
    ([70, 40, 500], 3),
    ([33, 24, 1000], 16),
    ([5, 64, 9001], 7),
];
const FACTOR: f32 = 1.5;

/// Operands, as tensors and in f64. Scores are of order 1, and every fourth target is ignored.
struct Example {
    operands: Operands,
    x: Vec<f64>,
    weight: Vec<f64>,
    targets: Vec<u32>,
    settings: Settings,
}

impl Example {
    fn new(case: &Case, ([rows, inputs, vocabulary], pieces): ([usize; 3], usize), capped: bool) -> Self {
        let small = 1.0 / (inputs as f32).sqrt();
        let x: Vec<f32> = case.normal("x", rows * inputs).iter().map(|v| case.round(v * small)).collect();
        let weight = case.normal("weight", vocabulary * inputs);
        let mut targets = case.indices("targets", rows, vocabulary);
        targets.iter_mut().skip(1).step_by(4).for_each(|target| *target = IGNORED);
        let settings = Settings { scale: 0.5, soft_cap: capped.then_some(2.0), pieces };
        let operands = Operands {
            x: case.tensor(&x, [rows, inputs]),
            weight: case.tensor(&weight, [vocabulary, inputs]),
            targets: tensor(&case.device, &targets, [rows]),
        };
        let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
        Example { operands, x: wide(x), weight: wide(weight), targets, settings }
    }

    fn valid_targets(&self) -> Vec<u32> {
        self.targets.iter().copied().filter(|target| *target != IGNORED).collect()
    }

    /// Returns the expected loss, gradient of `x` and gradient of the weight.
    fn expected(&self) -> (f64, Vec<f64>, Vec<f64>) {
        let inputs = self.x.len() / self.targets.len();
        let vocabulary = self.weight.len() / inputs;
        let raw = reference::linear(&self.x, &self.weight, None, inputs);
        let cap = self.settings.soft_cap.map(f64::from);
        let capped = |x: &f64| cap.map_or(*x, |cap| cap * (x / cap).tanh());
        let slope = |y: f64| cap.map_or(1.0, |cap| 1.0 - (y / cap).powi(2));
        let scores: Vec<f64> = raw.iter().map(capped).collect();
        let rows = || scores.chunks(vocabulary).zip(&self.targets).enumerate();
        let own: Vec<f64> =
            rows().filter(|(_, (_, t))| **t != IGNORED).flat_map(|(_, (row, _))| row.to_vec()).collect();
        let loss = f64::from(self.settings.scale) * reference::cross_entropy(&own, &self.valid_targets());
        let weight = f64::from(FACTOR * self.settings.scale) / self.valid_targets().len() as f64;
        let mut dx = vec![0.0; self.x.len()];
        let mut dweight = vec![0.0; self.weight.len()];
        for (row, (scores, target)) in rows().filter(|(_, (_, target))| **target != IGNORED) {
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|y| (y - largest).exp()).sum();
            for (class, y) in scores.iter().enumerate() {
                let hot = f64::from(u8::from(class == *target as usize));
                let gradient = weight * ((y - largest).exp() / total - hot) * slope(*y);
                for input in 0..inputs {
                    dx[row * inputs + input] += gradient * self.weight[class * inputs + input];
                    dweight[class * inputs + input] += gradient * self.x[row * inputs + input];
                }
            }
        }
        (loss, dx, dweight)
    }
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (number, size) in SIZES.into_iter().enumerate() {
        [false, true].into_iter().for_each(|capped| loss_and_gradients(trial, size, capped, number % 2 == 1));
    }
    halves(trial);
    all_ignored(trial);
}

fn loss_and_gradients(trial: &mut Trial<'_>, size: ([usize; 3], usize), capped: bool, accumulate: bool) {
    trial.label(format!("{size:?} capped {capped}"));
    let example = Example::new(trial, size, capped);
    let (loss, dx, dweight) = if trial.compares() { example.expected() } else { Default::default() };
    let Example { operands, settings, .. } = &example;
    let result = forward(operands, settings, None).unwrap();
    assert!(result.loss.dtype() == DType::F32 && result.loss.shape() == [0; 0].into());
    trial.output("loss", &result.loss, || vec![loss]);
    trial.result("statistics", &result.statistics.rows);
    let factor = tensor(&trial.device, &[FACTOR], [1]);
    let [rows, inputs, vocabulary] = size.0;
    let target = trial.target("dweight", [vocabulary, inputs], accumulate);
    // The previous value is larger than the gradient, and so is the rounding of their sum.
    let expected: Vec<f64> = match trial.compares() && accumulate {
        true => read(&target.tensor).iter().zip(&dweight).map(|(before, dw)| before + dw).collect(),
        false => dweight,
    };
    let actual = backward(operands, &result.statistics, settings, &factor, true, Some(&target));
    let actual = actual.unwrap().unwrap();
    assert!(actual.shape() == [rows, inputs].into() && actual.dtype() == trial.dtype);
    trial.output("dx", &actual, || dx);
    trial.output("dweight", &target.tensor, || expected);
}

/// Tests that computing the two gradients separately gives the bits of computing both.
fn halves(trial: &mut Trial<'_>) {
    trial.label(format!("{:?} in halves", SIZES[3]));
    let Example { operands, settings, .. } = Example::new(trial, SIZES[3], true);
    let statistics = forward(&operands, &settings, None).unwrap().statistics;
    let factor = tensor(&trial.device, &[FACTOR], [1]);
    let shape: [usize; 2] = operands.weight.shape().dims().try_into().unwrap();
    let [whole, half] = ["whole", "half"].map(|name| trial.target(name, shape, false));
    let run = |input, target| backward(&operands, &statistics, &settings, &factor, input, target).unwrap();
    let both = run(true, Some(&whole)).unwrap();
    let alone = run(true, None).unwrap();
    trial.same("dx alone", &alone, &both);
    assert!(run(false, Some(&half)).is_none());
    trial.same("dweight alone", &half.tensor, &whole.tensor);
}

/// Tests that loss and gradients are 0 if all targets are ignored.
fn all_ignored(trial: &mut Trial<'_>) {
    trial.label(format!("{:?} all ignored", SIZES[2]));
    let Example { operands, settings, .. } = Example::new(trial, SIZES[2], false);
    let targets = tensor(&trial.device, &[IGNORED; 7], [7]);
    let operands = Operands { targets, ..operands };
    let result = forward(&operands, &settings, None).unwrap();
    trial.rounded_output("loss without targets", &result.loss, || vec![0.0]);
    let factor = tensor(&trial.device, &[1.0_f32], [1]);
    let dx = backward(&operands, &result.statistics, &settings, &factor, true, None).unwrap().unwrap();
    trial.rounded_output("dx without targets", &dx, || vec![0.0; dx.elements()]);
}

#[test]
fn operands_that_do_not_go_together_are_refused() {
    for case in devices() {
        let Example { operands, settings, .. } = Example::new(&case, SIZES[1], false);
        let few = tensor(&case.device, &[0_u32; 2], [2]);
        let (narrow, _) = case.operand("narrow", [33, 4]);
        let refused = |operands: &Operands| forward(operands, &settings, None).unwrap_err().to_string();
        let with = |weight: &Tensor, targets: &Tensor| {
            refused(&Operands { weight: weight.clone(), targets: targets.clone(), ..operands.clone() })
        };
        assert!(with(&operands.weight, &few).contains("3 elements"));
        assert!(with(&narrow, &operands.targets).contains("expected [3, 4]"));
    }
}
