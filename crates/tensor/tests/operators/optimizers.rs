use tensor::ops::{adamw, sgd};

use crate::support::{bits, close, cpu, normal, operand, read, tensor};

/// One element, an odd length, more than one piece.
const LENGTHS: [usize; 3] = [1, 33, 40_001];

#[test]
fn adamw_follows_the_published_formula_for_many_steps() {
    let device = cpu();
    let (rate, beta1, beta2, epsilon, decay) = (0.01f32, 0.9f32, 0.95f32, 1e-8f32, 0.1f32);
    for clip in [1.0f64, 0.5] {
        let factor = tensor(&device, &[7.0f32, clip as f32], [2]);
        let made = LENGTHS.map(|n| {
            (
                operand(&device, "w", [n]),
                tensor(&device, &vec![0f32; n], [n]),
                tensor(&device, &vec![0f32; n], [n]),
            )
        });
        let mut expected: Vec<_> = LENGTHS
            .iter()
            .enumerate()
            .map(|(i, n)| (made[i].0.1.clone(), vec![0.0; *n], vec![0.0; *n]))
            .collect();
        for step in 1..=5u32 {
            let gradients = LENGTHS.map(|n| operand(&device, &format!("g{step}"), [n]));
            let items: Vec<_> = (0..LENGTHS.len())
                .map(|i| adamw::Item {
                    weight: &made[i].0.0,
                    gradient: &gradients[i].0,
                    first: &made[i].1,
                    second: &made[i].2,
                    decay: i != 1,
                })
                .collect();
            let hyper =
                adamw::Hyper { learning_rate: rate, beta1, beta2, epsilon, weight_decay: decay, step };
            adamw::step(&items, &hyper, (clip != 1.0).then_some(&factor)).unwrap();
            let [rate, b1, b2, epsilon] = [rate, beta1, beta2, epsilon].map(f64::from);
            for (i, (weights, first, second)) in expected.iter_mut().enumerate() {
                let decay = if i == 1 { 0.0 } else { f64::from(decay) };
                for (k, g) in gradients[i].1.iter().map(|g| g * clip).enumerate() {
                    weights[k] -= rate * decay * weights[k];
                    first[k] = b1 * first[k] + (1.0 - b1) * g;
                    second[k] = b2 * second[k] + (1.0 - b2) * g * g;
                    let corrected: f64 = second[k] / (1.0 - b2.powi(step as i32));
                    weights[k] -=
                        rate * first[k] / (1.0 - b1.powi(step as i32)) / (corrected.sqrt() + epsilon);
                }
            }
            for (i, (weights, first, second)) in expected.iter().enumerate() {
                close("weight", &read(&made[i].0.0), weights);
                close("first", &read(&made[i].1), first);
                close("second", &read(&made[i].2), second);
            }
        }
    }
}

#[test]
fn sgd_follows_the_published_formula_for_many_steps() {
    let device = cpu();
    let (rate, mu, decay) = (0.1f32, 0.9f32, 0.01f32);
    for with_momentum in [false, true] {
        for length in LENGTHS {
            let (weight, mut expected) = operand(&device, "w", [length]);
            let buffer = tensor(&device, &vec![f32::NAN; length], [length]);
            let mut momentum = vec![0.0; length];
            for step in 0..4 {
                let (gradient, wide) = operand(&device, &format!("g{step}"), [length]);
                let momentum_tensor = with_momentum.then_some(&buffer);
                let items = [sgd::Item { weight: &weight, gradient: &gradient, momentum: momentum_tensor }];
                let hyper = sgd::Hyper {
                    learning_rate: rate,
                    momentum: mu,
                    weight_decay: decay,
                    first_step: step == 0,
                };
                sgd::step(&items, &hyper, None).unwrap();
                for ((weight, momentum), g) in expected.iter_mut().zip(&mut momentum).zip(wide) {
                    let g = g + f64::from(decay) * *weight;
                    *momentum = if step > 0 && with_momentum { f64::from(mu) * *momentum + g } else { g };
                    *weight -= f64::from(rate) * *momentum;
                }
            }
            close("weight", &read(&weight), &expected);
            if with_momentum {
                close("momentum", &read(&buffer), &momentum);
            }
        }
    }
}

#[test]
fn many_parameters_in_one_call_are_as_one_by_one() {
    let device = cpu();
    let state = |n: usize| ["w", "g", "m", "v"].map(|name| tensor(&device, &normal(name, n).map_abs(), [n]));
    let (together, alone) = (LENGTHS.map(state), LENGTHS.map(state));
    let item = |[weight, gradient, first, second]: &'_ [tensor::Tensor; 4]| {
        let [weight, gradient, first, second] = [weight, gradient, first, second].map(Clone::clone);
        (weight, gradient, first, second)
    };
    let hyper = adamw::Hyper {
        learning_rate: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.1,
        step: 3,
    };
    let owned = together.each_ref().map(item);
    let items = owned.each_ref().map(|(weight, gradient, first, second)| adamw::Item {
        weight,
        gradient,
        first,
        second,
        decay: true,
    });
    adamw::step(&items, &hyper, None).unwrap();
    for [weight, gradient, first, second] in &alone {
        adamw::step(&[adamw::Item { weight, gradient, first, second, decay: true }], &hyper, None).unwrap();
    }
    for (together, alone) in together.iter().flatten().zip(alone.iter().flatten()) {
        assert_eq!(bits(together), bits(alone));
    }
}

trait MapAbs {
    fn map_abs(self) -> Self;
}

impl MapAbs for Vec<f32> {
    /// A second moment is not negative.
    fn map_abs(self) -> Self {
        self.into_iter().map(f32::abs).collect()
    }
}
