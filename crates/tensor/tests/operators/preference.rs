//! Preference losses of pairs of answers.

use tensor::ops::cross_entropy::IGNORED;
use tensor::ops::preference::{self, Objective, Sequences, VALUES};
use tensor::{DType, Tensor};

use crate::support::{Case, devices, tensor};
use crate::trial::Trial;

const OBJECTIVES: [Objective; 4] = [
    Objective::Dpo { beta: 0.3, label_smoothing: 0.0 },
    Objective::Dpo { beta: 0.1, label_smoothing: 0.2 },
    Objective::Ipo { beta: 0.5 },
    Objective::Orpo { lambda: 0.7 },
];
const SCALE: f32 = 0.25;
/// Pairs, and rows of a sequence: one row, several thread blocks, and more pairs than threads of a block.
const SIZES: [[usize; 2]; 4] = [[1, 1], [3, 7], [2, 700], [300, 2]];

/// Losses of rows, targets (some of them ignored), answers, and scores of a reference model.
struct Example {
    losses: Tensor,
    targets: Tensor,
    answers: Tensor,
    reference: Tensor,
    plain: Plain,
}

/// The operands in plain f64.
struct Plain {
    losses: Vec<f64>,
    /// Whether the target of each row is not ignored.
    counts: Vec<bool>,
    /// Index of the first row of each answer.
    first: Vec<usize>,
    reference: Vec<f64>,
}

impl Example {
    fn new(case: &Case, [pairs, time]: [usize; 2]) -> Self {
        let sequences = 2 * pairs;
        let rows = 2 * pairs * time;
        let losses: Vec<f32> = case.normal("losses", rows).iter().map(|x| x.abs() + 0.01).collect();
        let first: Vec<usize> =
            case.indices("answers", sequences, time).into_iter().map(|index| index as usize).collect();
        let counts: Vec<bool> =
            (0..rows).map(|row| row % time <= first[row / time] || row % 3 != 1).collect();
        let targets: Vec<u32> = counts.iter().map(|counts| if *counts { 5 } else { IGNORED }).collect();
        let answers: Vec<u32> = first.iter().map(|index| *index as u32).collect();
        let reference: Vec<f32> =
            case.normal("reference", sequences).iter().map(|x| x - time as f32).collect();
        Example {
            losses: tensor(&case.device, &losses, [rows]),
            targets: tensor(&case.device, &targets, [rows]),
            answers: tensor(&case.device, &answers, [sequences]),
            reference: tensor(&case.device, &reference, [sequences]),
            plain: Plain {
                losses: losses.into_iter().map(f64::from).collect(),
                counts,
                first,
                reference: reference.into_iter().map(f64::from).collect(),
            },
        }
    }

    fn sequences(&self) -> Sequences<'_> {
        Sequences { losses: &self.losses, targets: &self.targets, answers: &self.answers }
    }
}

impl Plain {
    /// Returns ln p and the number of tokens of each answer.
    fn scores(&self, losses: &[f64]) -> Vec<[f64; 2]> {
        let time = losses.len() / self.first.len();
        let score = |(sequence, first): (usize, &usize)| {
            let rows = sequence * time + first..(sequence + 1) * time;
            let own = rows.filter(|row| self.counts[*row]).map(|row| -losses[row]);
            own.fold([0.0, 0.0], |[sum, tokens], score| [sum + score, tokens + 1.0])
        };
        self.first.iter().enumerate().map(score).collect()
    }

    /// Computes the values of the loss by the formulas.
    fn values(&self, objective: Objective, losses: &[f64], divisor: Option<u32>) -> [f64; VALUES] {
        let scores = self.scores(losses);
        let scale = f64::from(SCALE);
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let pairs = scores.len() as f64 / 2.0;
        let mut values = [0.0; VALUES];
        for (index, pair) in scores.chunks(2).enumerate() {
            let gain = |which: usize| pair[which][0] - self.reference[2 * index + which];
            let mean = |which: usize| pair[which][0] / pair[which][1];
            let (loss, rewards) = match objective {
                Objective::Dpo { beta, label_smoothing } => {
                    let beta = f64::from(beta);
                    let wrong = f64::from(label_smoothing);
                    let margin = beta * (gain(0) - gain(1));
                    let loss = (1.0 - wrong) * softplus(-margin) + wrong * softplus(margin);
                    (loss, [beta * gain(0), beta * gain(1)])
                }
                Objective::Ipo { beta } => {
                    let beta = f64::from(beta);
                    let distance = gain(0) / pair[0][1] - gain(1) / pair[1][1] - 1.0 / (2.0 * beta);
                    (distance.powi(2), [beta * gain(0), beta * gain(1)])
                }
                Objective::Orpo { lambda } => {
                    let odds = |mean: f64| (mean.exp() / (1.0 - mean.exp())).ln();
                    let lambda = f64::from(lambda);
                    let loss = lambda * softplus(odds(mean(1)) - odds(mean(0)));
                    (loss, [lambda * mean(0), lambda * mean(1)])
                }
            };
            let margin = rewards[0] - rewards[1];
            let figures = [loss, f64::from(u8::from(margin > 0.0)), margin, rewards[0], rewards[1], 0.0];
            values.iter_mut().zip(figures).for_each(|(value, figure)| *value += scale * figure / pairs);
        }
        if objective.learns_prompts() {
            let time = losses.len() / self.first.len();
            let rows = || (0..losses.len()).filter(|row| self.counts[*row] && (row / time).is_multiple_of(2));
            let of_row = divisor.map_or(scale / rows().count() as f64, |divisor| 1.0 / f64::from(divisor));
            values[5] = of_row * rows().map(|row| losses[row]).sum::<f64>();
            values[0] += values[5];
        }
        values
    }
}

/// Losses are f32 whatever the type of the model, so one type is tested.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    if trial.dtype != DType::F32 {
        return;
    }
    for size in SIZES {
        trial.label(format!("{size:?}"));
        let example = Example::new(trial, size);
        let sequences = example.sequences();
        let plain = &example.plain;
        trial.single_output("scores", &preference::scores(sequences).unwrap(), || {
            plain.scores(&plain.losses).iter().map(|[sum, _]| *sum).collect()
        });
        for objective in OBJECTIVES {
            let reference = objective.has_reference().then_some(&example.reference);
            for divisor in [None, Some(77)] {
                trial.label(format!("{size:?}, {objective:?}, divisor {divisor:?}"));
                let count = divisor.map(|divisor: u32| tensor(&trial.device, &[divisor], []));
                let output = preference::forward(sequences, reference, objective, SCALE, count.as_ref());
                let output = output.unwrap();
                let values = |losses: &[f64]| plain.values(objective, losses, divisor);
                trial.single_output("values", &output.values, || values(&plain.losses).to_vec());
                trial.gradient("weights", &output.weights, (&plain.losses, 0.0), |losses| values(losses)[0]);
            }
        }
    }
}

#[test]
fn operands_that_are_no_pairs_are_refused() {
    for case in devices().into_iter().filter(|case| case.dtype == DType::F32) {
        let example = Example::new(&case, [2, 3]);
        let odd = tensor(&case.device, &[0_u32, 1, 2], [3]);
        let refused = |sequences: Sequences, reference: Option<&Tensor>| {
            preference::forward(sequences, reference, OBJECTIVES[0], 1.0, None).unwrap_err().to_string()
        };
        let all = example.sequences();
        let text = refused(Sequences { answers: &odd, ..all }, None);
        assert!(text.contains("answers") && text.contains("pairs of sequences"), "{text}");
        assert!(refused(all, None).contains("one score each"));
        assert!(refused(all, Some(&example.losses)).contains("4 elements"));
        assert!(refused(Sequences { losses: &example.reference, ..all }, None).contains("12 elements"));
    }
}
