//! The loss of scores computed in pieces of the vocabulary.

use tensor::ops::cross_entropy::IGNORED;
use tensor::ops::linear_cross_entropy::{Operands, Settings, backward, forward};
use tensor::{DType, Tensor};

use crate::reference;
use crate::support::{Case, bits, devices, read, tensor};

/// Rows, inputs, vocabulary, pieces: one piece, odd sizes, a smaller last piece, more pieces than fit.
const SIZES: [([usize; 3], usize); 6] = [
    ([1, 8, 2], 1),
    ([3, 5, 33], 4),
    ([7, 16, 130], 2),
    ([70, 40, 500], 3),
    ([33, 24, 1000], 16),
    ([5, 64, 9001], 7),
];
const FACTOR: f32 = 1.5;

/// Operands, as tensors and in f64; scores are of the order of 1, and every fourth target is ignored.
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

    /// The loss, the gradient of `x` and that of the weight.
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
        let (mut dx, mut dweight) = (vec![0.0; self.x.len()], vec![0.0; self.weight.len()]);
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

#[test]
fn loss_and_gradients() {
    for case in devices() {
        for (number, size) in SIZES.into_iter().enumerate() {
            for capped in [false, true] {
                let example = Example::new(&case, size, capped);
                let what = |part: &str| format!("{part} {size:?} capped {capped}");
                let (loss, dx, dweight) = example.expected();
                let result = forward(&example.operands, &example.settings, None).unwrap();
                assert!(result.loss.dtype() == DType::F32 && result.loss.shape() == [0; 0].into());
                case.close(&what("loss"), &read(&result.loss), &[loss]);
                let factor = tensor(&case.device, &[FACTOR], [1]);
                let [rows, inputs, vocabulary] = size.0;
                let target = case.target("dweight", [vocabulary, inputs], number % 2 == 1);
                let Example { operands, settings, .. } = &example;
                let actual = backward(operands, &result.statistics, settings, &factor, true, Some(&target));
                let actual = actual.unwrap().unwrap();
                assert!(actual.shape() == [rows, inputs].into() && actual.dtype() == case.dtype);
                case.close(&what("dx"), &read(&actual), &dx);
                // The previous value is larger than the gradient, and so is the rounding of their sum.
                let (sum, added) = (read(&target.tensor), case.added(&target, "dweight"));
                let parts = sum.iter().zip(&added).zip(&dweight);
                let expected: Vec<f64> = parts.map(|((sum, added), dw)| sum - added + dw).collect();
                case.close(&what("dweight"), &sum, &expected);
            }
        }
    }
}

#[test]
fn halves_of_backward_give_the_bits_of_the_whole() {
    for case in devices() {
        let Example { operands, settings, .. } = Example::new(&case, SIZES[3], true);
        let statistics = forward(&operands, &settings, None).unwrap().statistics;
        let factor = tensor(&case.device, &[FACTOR], [1]);
        let shape: [usize; 2] = operands.weight.shape().dims().try_into().unwrap();
        let (whole, half) = (case.target("whole", shape, false), case.target("half", shape, false));
        let run =
            |input, target| backward(&operands, &statistics, &settings, &factor, input, target).unwrap();
        let both = run(true, Some(&whole)).unwrap();
        let alone = run(true, None).unwrap();
        assert!(run(false, Some(&half)).is_none());
        assert_eq!(bits(&both), bits(&alone), "{}", case.name());
        assert_eq!(bits(&whole.tensor), bits(&half.tensor), "{}", case.name());
    }
}

#[test]
fn all_targets_ignored_have_no_loss_and_no_gradient() {
    for case in devices() {
        let Example { operands, settings, .. } = Example::new(&case, SIZES[2], false);
        let targets = tensor(&case.device, &[IGNORED; 7], [7]);
        let operands = Operands { targets, ..operands };
        let result = forward(&operands, &settings, None).unwrap();
        assert_eq!(read(&result.loss), [0.0]);
        let factor = tensor(&case.device, &[1.0_f32], [1]);
        let dx = backward(&operands, &result.statistics, &settings, &factor, true, None).unwrap().unwrap();
        assert!(read(&dx).iter().all(|slope| *slope == 0.0), "{}", case.name());
    }
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
