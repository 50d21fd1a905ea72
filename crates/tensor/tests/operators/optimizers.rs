use half::bf16;
use tensor::ops::{Table, adamw, sgd};
use tensor::{DType, Tensor};

use crate::support::{Case, bits, close, close_sums, gradient_cases, normal, read, tensor, typed};

/// One element, an odd length, more than one piece and block.
const LENGTHS: [usize; 4] = [1, 33, 40_001, 8192];

/// Asserts that `copy` is `weight` rounded.
fn is_rounded(copy: &Tensor, weight: &Tensor) {
    let rounded = weight.to_vec::<f32>().unwrap().into_iter().map(|w| u32::from(bf16::from_f32(w).to_bits()));
    assert_eq!(bits(copy), rounded.collect::<Vec<_>>());
}

/// A weight and its two moments, in f32, and its bf16 copy. The cases' types are those of the gradients.
struct Parameter {
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    compute: Option<Tensor>,
}

fn parameter(case: &Case, length: usize, copied: bool) -> Parameter {
    let zeros = || tensor(&case.device, &vec![0f32; length], [length]);
    let compute = copied.then(|| typed(&case.device, DType::Bf16, &vec![f32::NAN; length], [length]));
    Parameter { weight: case.single().operand("w", [length]).0, first: zeros(), second: zeros(), compute }
}

#[test]
fn adamw_follows_the_published_formula_for_many_steps() {
    for case in gradient_cases() {
        for (clip, copied) in [(1.0f64, false), (0.5, true)] {
            adamw_steps(&case, clip, copied);
        }
    }
}

fn adamw_steps(case: &Case, clip: f64, copied: bool) {
    let (rate, beta1, beta2, epsilon, decay) = (0.01f32, 0.9f32, 0.95f32, 1e-8f32, 0.1f32);
    let factor = tensor(&case.device, &[7.0, clip as f32], [2]);
    let made = LENGTHS.map(|length| parameter(case, length, copied));
    let mut expected = LENGTHS.map(|n| (case.single().operand("w", [n]).1, vec![0.0; n], vec![0.0; n]));
    // What goes into the first moments, without signs.
    let mut added = LENGTHS.map(|n| vec![0.0; n]);
    let table = Table::of_parameters(&case.device, LENGTHS.len()).unwrap();
    for step in 1..=5u32 {
        let gradients = LENGTHS.map(|n| case.operand(&format!("g{step}"), [n]));
        let item = |i: usize| adamw::Item {
            weight: &made[i].weight,
            gradient: &gradients[i].0,
            first: &made[i].first,
            second: &made[i].second,
            compute: made[i].compute.as_ref(),
            decay: i != 1,
        };
        let items: Vec<_> = (0..LENGTHS.len()).map(item).collect();
        let hyper = adamw::Hyper { learning_rate: rate, beta1, beta2, epsilon, weight_decay: decay, step };
        adamw::step(&table, &items, &hyper, (clip != 1.0).then_some(&factor)).unwrap();
        let [rate, b1, b2, epsilon] = [rate, beta1, beta2, epsilon].map(f64::from);
        for (i, (weights, first, second)) in expected.iter_mut().enumerate() {
            let decay = if i == 1 { 0.0 } else { f64::from(decay) };
            for (k, g) in gradients[i].1.iter().map(|g| g * clip).enumerate() {
                weights[k] -= rate * decay * weights[k];
                added[i][k] = b1 * added[i][k] + (1.0 - b1) * g.abs();
                first[k] = b1 * first[k] + (1.0 - b1) * g;
                second[k] = b2 * second[k] + (1.0 - b2) * g * g;
                let corrected: f64 = second[k] / (1.0 - b2.powi(step as i32));
                weights[k] -= rate * first[k] / (1.0 - b1.powi(step as i32)) / (corrected.sqrt() + epsilon);
            }
        }
        for ((made, (weights, first, second)), added) in made.iter().zip(&expected).zip(&added) {
            close("weight", &read(&made.weight), weights);
            close_sums("first", &read(&made.first), first, added);
            close("second", &read(&made.second), second);
            if let Some(copy) = &made.compute {
                is_rounded(copy, &made.weight);
            }
        }
    }
}

#[test]
fn sgd_follows_the_published_formula_for_many_steps() {
    for case in gradient_cases() {
        for (with_momentum, copied) in [(false, true), (true, false), (true, true)] {
            LENGTHS.into_iter().for_each(|length| sgd_steps(&case, length, with_momentum, copied));
        }
    }
}

fn sgd_steps(case: &Case, length: usize, with_momentum: bool, copied: bool) {
    let (rate, mu, decay) = (0.1f32, 0.9f32, 0.01f32);
    let (made, mut expected) = (parameter(case, length, copied), case.single().operand("w", [length]).1);
    let buffer = tensor(&case.device, &vec![f32::NAN; length], [length]);
    let mut momentum = vec![0.0; length];
    // What goes into both, without signs.
    let mut added: Vec<_> = expected.iter().map(|w: &f64| (w.abs(), 0.0)).collect();
    let table = Table::of_parameters(&case.device, 1).unwrap();
    for step in 0..4 {
        let (gradient, wide) = case.operand(&format!("g{step}"), [length]);
        let items = [sgd::Item {
            weight: &made.weight,
            gradient: &gradient,
            momentum: with_momentum.then_some(&buffer),
            compute: made.compute.as_ref(),
        }];
        let hyper =
            sgd::Hyper { learning_rate: rate, momentum: mu, weight_decay: decay, first_step: step == 0 };
        sgd::step(&table, &items, &hyper, None).unwrap();
        let mu = if step > 0 && with_momentum { f64::from(mu) } else { 0.0 };
        let state = expected.iter_mut().zip(&mut momentum).zip(&mut added);
        for (((weight, momentum), added), g) in state.zip(wide) {
            added.1 = mu * added.1 + g.abs() + f64::from(decay) * added.0;
            added.0 += f64::from(rate) * added.1;
            *momentum = mu * *momentum + g + f64::from(decay) * *weight;
            *weight -= f64::from(rate) * *momentum;
        }
    }
    let (to_weight, to_momentum): (Vec<_>, Vec<_>) = added.into_iter().unzip();
    close_sums("weight", &read(&made.weight), &expected, &to_weight);
    if with_momentum {
        close_sums("momentum", &read(&buffer), &momentum, &to_momentum);
    }
    if let Some(copy) = &made.compute {
        is_rounded(copy, &made.weight);
    }
}

#[test]
fn many_parameters_in_one_call_are_as_one_by_one() {
    let hyper = adamw::Hyper {
        learning_rate: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.1,
        step: 3,
    };
    for case in gradient_cases() {
        // A second moment is not negative. Parts of a longer tensor begin at any element.
        let state = |length: usize, start: usize| {
            [("w", DType::F32), ("g", case.dtype), ("m", DType::F32), ("v", DType::F32)].map(
                |(name, dtype)| {
                    let mut values = vec![0.0; start];
                    values.extend(normal(name, length).iter().map(|v| v.abs()));
                    typed(&case.device, dtype, &values, [length + start]).view(start, [length]).unwrap()
                },
            )
        };
        let [together, alone] = [1, 0].map(|start| LENGTHS.map(|length| state(length, start)));
        let item = |[weight, gradient, first, second]: &'_ [Tensor; 4]| {
            let [weight, gradient, first, second] = [weight, gradient, first, second].map(Clone::clone);
            (weight, gradient, first, second)
        };
        let owned = together.each_ref().map(item);
        let items = owned.each_ref().map(|(weight, gradient, first, second)| adamw::Item {
            weight,
            gradient,
            first,
            second,
            compute: None,
            decay: true,
        });
        adamw::step(&Table::of_parameters(&case.device, 4).unwrap(), &items, &hyper, None).unwrap();
        let table = Table::of_parameters(&case.device, 1).unwrap();
        for [weight, gradient, first, second] in &alone {
            let item = adamw::Item { weight, gradient, first, second, compute: None, decay: true };
            adamw::step(&table, &[item], &hyper, None).unwrap();
        }
        for (together, alone) in together.iter().flatten().zip(alone.iter().flatten()) {
            assert_eq!(bits(together), bits(alone), "{}", case.name());
        }
        let short = adamw::step(&table, &items, &hyper, None).unwrap_err().to_string();
        assert_eq!(short, "adamw.step: 4 tensors, expected 1");
    }
}
