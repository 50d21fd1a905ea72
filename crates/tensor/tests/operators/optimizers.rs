use device::Device;
use device::{Float, dispatch};
use tensor::ops::optimizer::{self, Item, Stream, UpdateRule};
use tensor::ops::{StepState, Table, cast, norm, random};
use tensor::{DType, Tensor};

use crate::support::{Case, bits, close, close_sums, cpu, devices, normal, read, tensor, typed};
use crate::trial::Trial;

/// Lengths: one element, an odd length, and several pieces and blocks.
const LENGTHS: [usize; 4] = [1, 33, 40_001, 8192];

const ADAMW: UpdateRule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
const LION: UpdateRule = UpdateRule::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1 };
const SGD: UpdateRule = UpdateRule::Sgd { momentum: 0.0, weight_decay: 0.01 };
const MOMENTUM: UpdateRule = UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.01 };

/// Asserts that `copy` is `weight` rounded.
fn is_rounded(copy: &Tensor, weight: &Tensor) {
    let values = weight.to_vec::<f32>().unwrap().into_iter();
    let rounded: Vec<f64> =
        dispatch!(copy.dtype(), T => values.map(|w| T::from_f32(w).into()).collect(), _ => Vec::new());
    assert_eq!(read(copy), rounded);
}

/// A weight with its state, in f32, and its copy in a half type (f16 for gradients in f16). The case's type
/// is the gradients' type.
struct Parameter {
    weight: Tensor,
    states: Vec<Tensor>,
    compute: Option<Tensor>,
}

impl Parameter {
    /// Returns a parameter whose state is filled with `initial`.
    fn new(case: &Case, rule: &UpdateRule, length: usize, copied: bool, initial: f32) -> Self {
        let state = || tensor(&case.device, &vec![initial; length], [length]);
        let half = if case.dtype == DType::F16 { DType::F16 } else { DType::Bf16 };
        let compute = copied.then(|| typed(&case.device, half, &vec![f32::NAN; length], [length]));
        let states = rule.states().iter().map(|_| state()).collect();
        Parameter { weight: case.single().operand("w", [length]).0, states, compute }
    }

    fn item<'a>(&'a self, gradient: &'a Tensor, decay: bool) -> Item<'a> {
        Item {
            weight: &self.weight,
            gradient,
            states: &self.states,
            maxima: &[],
            compute: self.compute.as_ref(),
            decay,
            stream: Stream::default(),
        }
    }

    /// Returns the bits of all its tensors.
    fn bits(&self) -> Vec<Vec<u32>> {
        [&self.weight].into_iter().chain(&self.states).chain(&self.compute).map(bits).collect()
    }
}

fn state(device: &Device, learning_rate: f32) -> StepState {
    let state = StepState::new(device).unwrap();
    state.set_learning_rate(learning_rate).unwrap();
    state
}

/// Makes one update.
fn step(table: &Table, rule: &UpdateRule, items: &[Item<'_>], state: &StepState) {
    optimizer::begin(rule, state).unwrap();
    optimizer::update(table, rule, items, state).unwrap();
}

#[test]
fn adamw_follows_the_published_formula_for_many_steps() {
    for case in devices() {
        for (clip, scale, copied) in [(1.0, 1.0, false), (0.5, 1.0, true), (0.5, 0.25, false)] {
            adamw_steps(&case, clip, scale, copied);
        }
    }
}

fn adamw_steps(case: &Case, clip: f32, scale: f32, copied: bool) {
    let (rate, beta1, beta2, epsilon, decay) = (0.01f32, 0.9f32, 0.95f32, 1e-8f32, 0.1f32);
    let state = state(&case.device, rate);
    state.set_norm(7.0, clip).unwrap();
    state.set_gradient_scale(scale).unwrap();
    let parameters = LENGTHS.map(|length| Parameter::new(case, &ADAMW, length, copied, 0.0));
    let mut expected = LENGTHS.map(|n| (case.single().operand("w", [n]).1, vec![0.0; n], vec![0.0; n]));
    // Absolute sums of the terms of the first moments.
    let mut added = LENGTHS.map(|n| vec![0.0; n]);
    let table = Table::of_parameters(&case.device, LENGTHS.len()).unwrap();
    for count in 1..=5u32 {
        let gradients = LENGTHS.map(|n| case.operand(&format!("g{count}"), [n]));
        let items: Vec<_> = (0..LENGTHS.len()).map(|i| parameters[i].item(&gradients[i].0, i != 1)).collect();
        step(&table, &ADAMW, &items, &state);
        assert_eq!(state.updates().unwrap(), count);
        let factor = f64::from(clip) * f64::from(scale);
        let [rate, b1, b2, epsilon] = [rate, beta1, beta2, epsilon].map(f64::from);
        for (i, (weights, first, second)) in expected.iter_mut().enumerate() {
            let decay = if i == 1 { 0.0 } else { f64::from(decay) };
            for (k, g) in gradients[i].1.iter().map(|g| g * factor).enumerate() {
                weights[k] -= rate * decay * weights[k];
                added[i][k] = b1 * added[i][k] + (1.0 - b1) * g.abs();
                first[k] = b1 * first[k] + (1.0 - b1) * g;
                second[k] = b2 * second[k] + (1.0 - b2) * g * g;
                let corrected: f64 = second[k] / (1.0 - b2.powi(count as i32));
                weights[k] -= rate * first[k] / (1.0 - b1.powi(count as i32)) / (corrected.sqrt() + epsilon);
            }
        }
        for ((parameter, (weights, first, second)), added) in parameters.iter().zip(&expected).zip(&added) {
            close("weight", &read(&parameter.weight), weights);
            close_sums("first", &read(&parameter.states[0]), first, added);
            close("second", &read(&parameter.states[1]), second);
            if let Some(copy) = &parameter.compute {
                is_rounded(copy, &parameter.weight);
            }
        }
    }
}

#[test]
fn lion_follows_the_published_formula_for_many_steps() {
    for case in devices() {
        for (factor, copied) in [(1.0, false), (0.5, true)] {
            LENGTHS.into_iter().for_each(|length| lion_steps(&case, factor, length, copied));
        }
    }
}

fn lion_steps(case: &Case, clip: f32, length: usize, copied: bool) {
    let [rate, beta1, beta2, decay, factor] = [0.01f32, 0.9, 0.99, 0.1, clip].map(f64::from);
    let state = state(&case.device, 0.01);
    state.set_norm(7.0, clip).unwrap();
    let made = Parameter::new(case, &LION, length, copied, 0.0);
    let mut weights = case.single().operand("w", [length]).1;
    let mut momenta = vec![0.0; length];
    // Absolute sums of the terms of the momentum.
    let mut added = vec![0.0; length];
    let table = Table::of_parameters(&case.device, 1).unwrap();
    for count in 0..5 {
        let (gradient, wide) = case.operand(&format!("g{count}"), [length]);
        let before = read(&made.weight);
        step(&table, &LION, &[made.item(&gradient, true)], &state);
        let after = read(&made.weight);
        for (k, g) in wide.iter().map(|g| g * factor).enumerate() {
            let (a, b): (f64, f64) = (beta1 * momenta[k], (1.0 - beta1) * g);
            // The sign of a sum that nearly cancels is decided by rounding: take the one that was taken.
            let is_decided = (a + b).abs() > 1e-5 * (a.abs() + b.abs());
            let taken = before[k] * (1.0 - rate * decay) - after[k];
            let sign = if is_decided { (a + b).signum() } else { (taken / rate).round() };
            weights[k] = weights[k] * (1.0 - rate * decay) - rate * sign;
            momenta[k] = beta2 * momenta[k] + (1.0 - beta2) * g;
            added[k] = beta2 * added[k] + (1.0 - beta2) * g.abs();
        }
    }
    close("weight", &read(&made.weight), &weights);
    close_sums("momentum", &read(&made.states[0]), &momenta, &added);
    if let Some(copy) = &made.compute {
        is_rounded(copy, &made.weight);
    }
}

#[test]
fn sgd_follows_the_published_formula_for_many_steps() {
    for case in devices() {
        for (rule, copied) in [(SGD, true), (MOMENTUM, false), (MOMENTUM, true)] {
            LENGTHS.into_iter().for_each(|length| sgd_steps(&case, &rule, length, copied));
        }
    }
}

fn sgd_steps(case: &Case, rule: &UpdateRule, length: usize, copied: bool) {
    let (rate, mu, decay) = (0.1f32, 0.9f32, 0.01f32);
    let state = state(&case.device, rate);
    // The first update overwrites the velocity.
    let parameter = Parameter::new(case, rule, length, copied, f32::NAN);
    let mut expected = case.single().operand("w", [length]).1;
    let mut velocity = vec![0.0; length];
    // Absolute sums of the terms of both.
    let mut added: Vec<_> = expected.iter().map(|w: &f64| (w.abs(), 0.0)).collect();
    let table = Table::of_parameters(&case.device, 1).unwrap();
    for count in 0..4 {
        let (gradient, wide) = case.operand(&format!("g{count}"), [length]);
        step(&table, rule, &[parameter.item(&gradient, true)], &state);
        let mu = if count > 0 && !parameter.states.is_empty() { f64::from(mu) } else { 0.0 };
        let all = expected.iter_mut().zip(&mut velocity).zip(&mut added);
        for (((weight, velocity), added), g) in all.zip(wide) {
            added.1 = mu * added.1 + g.abs() + f64::from(decay) * added.0;
            added.0 += f64::from(rate) * added.1;
            *velocity = mu * *velocity + g + f64::from(decay) * *weight;
            *weight -= f64::from(rate) * *velocity;
        }
    }
    let (to_weight, to_velocity): (Vec<_>, Vec<_>) = added.into_iter().unzip();
    close_sums("weight", &read(&parameter.weight), &expected, &to_weight);
    for buffer in &parameter.states {
        close_sums("velocity", &read(buffer), &velocity, &to_velocity);
    }
    if let Some(copy) = &parameter.compute {
        is_rounded(copy, &parameter.weight);
    }
}

#[test]
fn decay_applies_only_to_items_that_request_it() {
    for case in devices() {
        for rule in [ADAMW, LION, SGD, MOMENTUM] {
            let [decayed, plain] = [true, false].map(|decay| {
                let parameter = Parameter::new(&case, &rule, 33, false, 0.0);
                let gradient = case.tensor(&[0.0; 33], [33]);
                let table = Table::of_parameters(&case.device, 1).unwrap();
                step(&table, &rule, &[parameter.item(&gradient, decay)], &state(&case.device, 0.1));
                parameter
            });
            let weight = case.single().operand("w", [33]).1;
            assert_eq!(read(&plain.weight), weight, "{rule:?}, {}", case.name());
            assert_ne!(read(&decayed.weight), weight, "{rule:?}, {}", case.name());
        }
    }
}

#[test]
fn many_parameters_in_one_call_give_the_same_bits_as_one_by_one() {
    for case in devices() {
        for rule in [ADAMW, LION, SGD, MOMENTUM] {
            many_and_one_by_one(&case, &rule);
        }
    }
}

fn many_and_one_by_one(case: &Case, rule: &UpdateRule) {
    // A second moment is not negative. Parts of a longer tensor may begin at any element.
    let view = |name: &str, dtype: DType, length: usize, start: usize| {
        let mut values = vec![0.0; start];
        values.extend(normal(name, length).iter().map(|v| v.abs()));
        typed(&case.device, dtype, &values, [length + start]).view(start, [length]).unwrap()
    };
    let operands = |length: usize, start: usize| {
        let states = rule.states().iter().map(|state| view(state.name, DType::F32, length, start));
        let weight = view("w", DType::F32, length, start);
        let parameter = Parameter { weight, states: states.collect(), compute: None };
        (parameter, view("g", case.dtype, length, start))
    };
    let [together, alone] = [1, 0].map(|start| LENGTHS.map(|length| operands(length, start)));
    let state = state(&case.device, 0.1);
    state.set_updates(2).unwrap();
    optimizer::begin(rule, &state).unwrap();
    let items = together.each_ref().map(|(parameter, gradient)| parameter.item(gradient, true));
    let table = Table::of_parameters(&case.device, 4).unwrap();
    optimizer::update(&table, rule, &items, &state).unwrap();
    let table = Table::of_parameters(&case.device, 1).unwrap();
    for (parameter, gradient) in &alone {
        optimizer::update(&table, rule, &[parameter.item(gradient, true)], &state).unwrap();
    }
    for ((together, _), (alone, _)) in together.iter().zip(&alone) {
        assert_eq!(together.bits(), alone.bits(), "{rule:?}, {}", case.name());
    }
    let short = optimizer::update(&table, rule, &items, &state).unwrap_err().to_string();
    assert!(short.ends_with(".step: 4 tensors, expected 1"), "{short}");
}

/// Bits of the parameter after an update, and the number of updates.
type Left = (Vec<Vec<u32>>, u32);

/// A skipped update still rounds copies from the weights, because a copy may be in a buffer that was filled
/// afterwards.
#[test]
fn a_skipped_update_changes_no_weight_and_is_not_counted() {
    for case in devices() {
        for rule in [ADAMW, LION, SGD, MOMENTUM] {
            // Updates; the marked ones are skipped, by the flag or by a norm that is not finite.
            let run = |skipped: &[bool], by_norm: Option<f32>| -> Vec<Left> {
                let parameter = Parameter::new(&case, &rule, 40_001, true, 0.0);
                let (gradient, _) = case.operand("g", [40_001]);
                let (table, state) =
                    (Table::of_parameters(&case.device, 1).unwrap(), state(&case.device, 0.1));
                let each = skipped.iter().map(|skip| {
                    match by_norm {
                        None => state.set_skip(*skip).unwrap(),
                        Some(norm) => state.set_norm(if *skip { norm } else { 1.0 }, 1.0).unwrap(),
                    }
                    step(&table, &rule, &[parameter.item(&gradient, true)], &state);
                    (parameter.bits(), state.updates().unwrap())
                });
                each.collect()
            };
            let all = run(&[false; 3], None);
            let start = Parameter::new(&case, &rule, 40_001, true, 0.0);
            cast::into(&start.weight, start.compute.as_ref().unwrap()).unwrap();
            let expected = [&(start.bits(), 0), &all[0], &all[0], &all[1], &all[1], &all[2]];
            for by_norm in [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY)] {
                let some = run(&[true, false, true, false, true, false], by_norm);
                for (index, (actual, expected)) in some.iter().zip(expected).enumerate() {
                    assert!(actual == expected, "{rule:?}, update {index}, {by_norm:?}, {}", case.name());
                }
            }
            assert_eq!(all[2].1, 3);
            assert_ne!(all[0].0, all[1].0);
        }
    }
}

#[test]
fn a_gradient_scale_equals_scaled_gradients() {
    for case in devices() {
        for rule in [ADAMW, LION, SGD, MOMENTUM] {
            // Scaling by a power of two rounds nothing.
            let [plain, scaled] = [(1.0f32, 1.0f32), (8.0, 0.125)].map(|(size, scale)| {
                let parameter = Parameter::new(&case, &rule, 8192, true, 0.0);
                let values: Vec<f32> = case.normal("g", 8192).iter().map(|g| g * size).collect();
                let gradient = case.tensor(&values, [8192]);
                let (table, state) =
                    (Table::of_parameters(&case.device, 1).unwrap(), state(&case.device, 0.1));
                state.set_gradient_scale(scale).unwrap();
                step(&table, &rule, &[parameter.item(&gradient, true)], &state);
                parameter.bits()
            });
            assert!(plain == scaled, "{rule:?}, {}", case.name());
        }
    }
}

#[test]
fn coefficients_have_the_same_bits_on_every_device() {
    let betas =
        [(0.9f32, 0.95f32), (0.9, 0.999), (0.0, 0.5), (0.99, 0.9999), (1e-30, 0.61237246), (0.8, 0.86)];
    let counts = (0..200).chain([999, 12_345, 99_999, 1_000_000, 1 << 30]);
    let counts: Vec<u32> = counts.collect();
    for case in devices() {
        let host = cpu();
        let [actual, expected] = [&case.device, &host].map(|device| state(device, 0.003));
        let same = |rule: &UpdateRule, count: u32| {
            for state in [&actual, &expected] {
                state.set_norm(2.0, 0.3).unwrap();
                state.set_updates(count).unwrap();
                optimizer::begin(rule, state).unwrap();
            }
            let what = format!("{rule:?} after {count} updates, {}", case.name());
            assert_eq!(bits(actual.tensor()), bits(expected.tensor()), "{what}");
        };
        for &count in &counts {
            for (beta1, beta2) in betas {
                same(&UpdateRule::AdamW { beta1, beta2, epsilon: 1e-8, weight_decay: 0.1 }, count);
            }
            [LION, SGD, MOMENTUM].iter().for_each(|rule| same(rule, count));
        }
    }
}

/// bf16 states are f32 states rounded up or down, with the same random numbers on every device and for a
/// shard of a parameter.
#[test]
fn states_in_bf16_are_rounded_at_random_by_name_element_and_update() {
    const LENGTH: usize = 12_288;
    // A part of a parameter begins on a chunk of the norm.
    const FIRST: usize = tensor::ops::norm::CHUNK;
    for case in devices().iter().filter(|case| case.dtype == DType::F32) {
        for rule in [ADAMW, MOMENTUM] {
            let gradients: Vec<Tensor> =
                (0..3).map(|step| case.operand(&format!("g{step}"), [LENGTH]).0).collect();
            let run = |range: std::ops::Range<usize>, dtype: DType| {
                let length = range.len();
                let state = state(&case.device, 0.01);
                let weight = case.operand("w", [LENGTH]).0;
                let zeros = || typed(&case.device, dtype, &vec![0.0; length], [length]);
                let states: Vec<Tensor> = rule.states().iter().map(|_| zeros()).collect();
                let weight = weight.view(range.start, [length]).unwrap();
                let table = Table::of_parameters(&case.device, 1).unwrap();
                for gradient in &gradients {
                    let gradient = gradient.view(range.start, [length]).unwrap();
                    let stream = Stream::new(1, "w", range.start);
                    let weight = &weight;
                    let states = &states[..];
                    let item = Item {
                        weight,
                        gradient: &gradient,
                        states,
                        maxima: &[],
                        compute: None,
                        decay: true,
                        stream,
                    };
                    step(&table, &rule, &[item], &state);
                }
                states
            };
            let whole = run(0..LENGTH, DType::Bf16);
            let exact = run(0..LENGTH, DType::F32);
            for (rounded, exact) in whole.iter().zip(&exact) {
                let rounded = read(rounded);
                let exact = read(exact);
                // Three roundings of at most a unit in the last digit, 2^-7 of the value, and of sums.
                let limit = exact.iter().fold(0.0f64, |most, value| most.max(value.abs())) / 32.0;
                let off = rounded.iter().zip(&exact).map(|(a, b)| a - b);
                assert!(off.clone().all(|off| off.abs() <= limit), "{}", case.name());
                let (up, down) =
                    (off.clone().filter(|off| *off > 0.0).count(), off.filter(|o| *o < 0.0).count());
                assert!(up > LENGTH / 4 && down > LENGTH / 4, "{up} up, {down} down, {}", case.name());
            }
            let part = run(FIRST..2 * FIRST, DType::Bf16);
            for (whole, part) in whole.iter().zip(&part) {
                assert_eq!(bits(&whole.view(FIRST, [FIRST]).unwrap()), bits(part), "{}", case.name());
            }
            if rule == MOMENTUM {
                continue;
            }
            let again = run(0..LENGTH, DType::Bf16).iter().map(bits).collect::<Vec<_>>();
            assert_eq!(whole.iter().map(bits).collect::<Vec<_>>(), again);
        }
    }
}

/// Tests updates by two rules after the gradients' norm was measured.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    trial.label("two tensors".to_owned());
    let gradients = [trial.operand("g", [700, 48]).0, trial.operand("h", [40_001]).0];
    let chunks = gradients.each_ref().map(|gradient| norm::chunks(gradient.elements()));
    let sums = trial.single().operand("sums", [chunks.iter().sum()]).0;
    let state = state(&trial.device, 1e-3);
    norm::chunk_sums(&gradients[0], &sums.view(0, [chunks[0]]).unwrap()).unwrap();
    norm::finish(&sums, 1.0, &state).unwrap();
    trial.result("norm", state.tensor());
    let table = Table::of_gradients(&trial.device, gradients.len()).unwrap();
    norm::measure(&table, &gradients, &sums, 1.0, &state).unwrap();
    trial.result("sums", &sums);
    trial.result("norm of all", state.tensor());
    let table = Table::of_parameters(&trial.device, 1).unwrap();
    for (rule, length) in [ADAMW, LION, SGD, MOMENTUM].iter().flat_map(|rule| LENGTHS.map(|n| (rule, n))) {
        let copied = trial.dtype != DType::F32;
        let parameter = Parameter::new(trial, rule, length, copied, 0.25);
        let (gradient, _) = trial.operand("gradient", [length]);
        step(&table, rule, &[parameter.item(&gradient, true)], &state);
        trial.result("weight", &parameter.weight);
        parameter.states.iter().for_each(|state| trial.result("state", state));
        parameter.compute.iter().for_each(|copy| trial.result("copy", copy));
    }
    let (weight, _) = trial.single().operand("weight", [33, 700]);
    random::normal(&weight, 1, "table", 0.0, 0.02).unwrap();
    trial.result("normal", &weight);
    let (head, _) = trial.operand("head", [33, 700]);
    random::uniform(&head, 1, "head", -1.0, 1.0).unwrap();
    trial.result("uniform", &head);
}
