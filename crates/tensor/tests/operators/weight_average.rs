use tensor::ops::weight_average::{self, Averaged};
use tensor::ops::{StepState, Table};
use tensor::{DType, Tensor};

use crate::support::{Case, bits, close, cpu, devices, read, tensor};
use crate::trial::Trial;

/// Lengths: one element, an odd length, and several pieces and blocks.
const LENGTHS: [usize; 4] = [1, 33, 40_001, 8192];

/// Returns f32 tensors of all lengths, views from element `start` on.
fn operands(case: &Case, name: &str, start: usize) -> Vec<Tensor> {
    let view = |length: usize| {
        let values = [vec![f32::NAN; start], case.normal(name, length)].concat();
        tensor(&case.device, &values, [start + length]).view(start, [length]).unwrap()
    };
    LENGTHS.map(view).to_vec()
}

fn pairs<'a>(weights: &'a [Tensor], averages: &'a [Tensor]) -> Vec<Averaged<'a>> {
    weights.iter().zip(averages).map(|(weight, average)| Averaged { weight, average }).collect()
}

/// Returns the state of a step with a finite norm and this fraction.
fn state(case: &Case, fraction: f32) -> StepState {
    let state = StepState::new(&case.device).unwrap();
    state.set_average_fraction(fraction).unwrap();
    assert_eq!(state.average_fraction(), fraction);
    state
}

fn all_bits(tensors: &[Tensor]) -> Vec<Vec<u32>> {
    tensors.iter().map(bits).collect()
}

#[test]
fn averages_follow_the_formula_in_float64_for_many_updates() {
    for case in devices().iter().filter(|case| case.dtype == DType::F32) {
        for (decay, start) in [(0.9, 0), (0.999, 1), (0.25, 0)] {
            let state = state(case, (1.0 - decay) as f32);
            let table = Table::of_averages(&case.device, LENGTHS.len()).unwrap();
            let averages = operands(case, "average", start);
            let mut expected: Vec<_> = averages.iter().map(read).collect();
            for update in 0..20 {
                let weights = operands(case, &format!("weight{update}"), start);
                weight_average::update(&table, &pairs(&weights, &averages), &state).unwrap();
                for (expected, weight) in expected.iter_mut().zip(&weights) {
                    for (expected, weight) in expected.iter_mut().zip(read(weight)) {
                        *expected = decay * *expected + (1.0 - decay) * weight;
                    }
                }
            }
            for (average, expected) in averages.iter().zip(&expected) {
                close(&format!("{decay}, {}", case.name()), &read(average), expected);
            }
        }
    }
}

/// A fraction of 1 copies any bits, also over an average that is not finite.
#[test]
fn a_fraction_of_one_copies_and_of_zero_keeps() {
    for case in devices().iter().filter(|case| case.dtype == DType::F32) {
        let table = Table::of_averages(&case.device, 1).unwrap();
        let weight = tensor(&case.device, &[-0.0, 1e-45, f32::MAX, -3.5, f32::INFINITY], [5]);
        let average = tensor(&case.device, &[f32::NAN, 1.0, f32::INFINITY, f32::MIN, 0.0], [5]);
        let before = bits(&average);
        let pair = [Averaged { weight: &weight, average: &average }];
        weight_average::update(&table, &pair, &state(case, 0.0)).unwrap();
        assert_eq!(bits(&average), before, "{}", case.name());
        weight_average::update(&table, &pair, &state(case, 1.0)).unwrap();
        assert_eq!(bits(&average), bits(&weight), "{}", case.name());
    }
}

#[test]
fn a_skipped_update_keeps_averages() {
    for case in devices().iter().filter(|case| case.dtype == DType::F32) {
        let table = Table::of_averages(&case.device, LENGTHS.len()).unwrap();
        let weights = operands(case, "weight", 0);
        for fraction in [0.1, 1.0] {
            let averages = operands(case, "average", 0);
            let before = all_bits(&averages);
            let state = state(case, fraction);
            for norm in [f32::NAN, f32::INFINITY, 1.0] {
                state.set_norm(norm, 1.0).unwrap();
                state.set_skip(norm == 1.0).unwrap();
                weight_average::update(&table, &pairs(&weights, &averages), &state).unwrap();
                assert_eq!(all_bits(&averages), before, "{fraction} {norm}, {}", case.name());
            }
            state.set_skip(false).unwrap();
            weight_average::update(&table, &pairs(&weights, &averages), &state).unwrap();
            assert_ne!(all_bits(&averages), before, "{fraction}, {}", case.name());
        }
    }
}

/// Bits depend neither on the device, nor on alignment or the number of weights in a call.
#[test]
fn averages_have_the_same_bits_on_every_device_and_alignment() {
    let updated = |case: &Case, start: usize, together: bool| {
        let [weights, averages] = ["weight", "average"].map(|name| operands(case, name, start));
        let state = state(case, 0.001);
        if together {
            let table = Table::of_averages(&case.device, LENGTHS.len()).unwrap();
            weight_average::update(&table, &pairs(&weights, &averages), &state).unwrap();
        } else {
            let table = Table::of_averages(&case.device, 1).unwrap();
            for pair in pairs(&weights, &averages) {
                weight_average::update(&table, &[pair], &state).unwrap();
            }
        }
        all_bits(&averages)
    };
    let reference = updated(&Case::new(cpu(), DType::F32), 0, true);
    for case in devices().into_iter().filter(|case| case.dtype == DType::F32) {
        // The operands of the host.
        let case = Case::new(case.device.clone(), case.dtype);
        for (start, together) in [(0, true), (1, true), (0, false)] {
            assert!(updated(&case, start, together) == reference, "{start} {together}, {}", case.name());
        }
    }
}

#[test]
fn an_exchange_moves_all_bits() {
    for case in devices().iter().filter(|case| case.dtype == DType::F32) {
        for start in [0, 1] {
            let [ones, others] = ["one", "other"].map(|name| operands(case, name, start));
            let before = [all_bits(&ones), all_bits(&others)];
            for (one, other) in ones.iter().zip(&others) {
                weight_average::exchange(one, other).unwrap();
            }
            assert_eq!([all_bits(&others), all_bits(&ones)], before, "{}", case.name());
        }
    }
}

#[test]
fn operands_that_do_not_agree_are_refused() {
    let device = cpu();
    let [three, four] = [3, 4].map(|length| tensor(&device, &vec![0.0f32; length], [length]));
    let integers = tensor(&device, &[0u32; 3], [3]);
    let table = Table::of_averages(&device, 1).unwrap();
    let state = StepState::new(&device).unwrap();
    let update = |items: &[(&Tensor, &Tensor)]| {
        let items: Vec<_> = items.iter().map(|(weight, average)| Averaged { weight, average }).collect();
        weight_average::update(&table, &items, &state)
    };
    for (expected, result) in [
        ("weight_average.update: 2 tensors, expected 1", update(&[(&three, &three), (&four, &four)])),
        ("weight_average.update: average", update(&[(&three, &four)])),
        ("weight_average.update: weight is u32", update(&[(&integers, &three)])),
        ("weight_average.exchange: average", weight_average::exchange(&three, &four)),
    ] {
        let error = result.expect_err(expected).to_string();
        assert!(error.contains(expected), "'{error}' does not say '{expected}'");
    }
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    trial.label("several weights".to_owned());
    let table = Table::of_averages(&trial.device, LENGTHS.len()).unwrap();
    let [weights, averages] = ["weight", "average"].map(|name| operands(trial, name, 0));
    let state = state(trial, 0.1);
    let before = trial.compares().then(|| averages.iter().map(read).collect::<Vec<_>>());
    weight_average::update(&table, &pairs(&weights, &averages), &state).unwrap();
    for (index, (weight, average)) in weights.iter().zip(&averages).enumerate() {
        trial.single_output("average", average, || {
            let before = before.iter().flat_map(|before| before[index].clone());
            before.zip(read(weight)).map(|(average, weight)| 0.9 * average + 0.1 * weight).collect()
        });
        weight_average::exchange(weight, average).unwrap();
        trial.result("weight", weight);
        trial.result("exchanged", average);
    }
}
