use tensor::Tensor;
use tensor::ops::{StepState, Table, norm};

use crate::support::{Case, bits, devices, read, repeats, tensor};

/// Returns an f32 tensor of sums.
fn single<const N: usize>(case: &Case, values: [f32; N]) -> Tensor {
    tensor(&case.device, &values, [N])
}

/// Returns a state with values that `finish` must overwrite.
fn unmeasured(case: &Case) -> StepState {
    let state = StepState::new(&case.device).unwrap();
    state.set_norm(f32::NAN, f32::NAN).unwrap();
    state
}

/// Returns the norm and the clipping factor.
fn measured(state: &StepState) -> [f64; 2] {
    [state.norm(), state.clip_factor()].map(|value| f64::from(value.unwrap()))
}

fn unwritten(case: &Case, count: usize) -> Tensor {
    tensor(&case.device, &vec![f32::NAN; count], [count])
}

const LENGTHS: [usize; 6] = [1, 4095, 4096, 4097, 100_000, 31];

fn total() -> usize {
    LENGTHS.iter().map(|length| norm::chunks(*length)).sum()
}

#[test]
fn norm_and_factor_of_several_tensors() {
    for case in devices() {
        let sums = unwritten(&case, total());
        let (mut first, mut squares) = (0, 0.0);
        for length in LENGTHS {
            let (x, wide) = case.operand("x", [length]);
            squares += wide.iter().map(|v| v * v).sum::<f64>();
            norm::chunk_sums(&x, &sums.view(first, [norm::chunks(length)]).unwrap()).unwrap();
            first += norm::chunks(length);
        }
        let length = squares.sqrt();
        for (max_norm, factor) in
            [(0.0, 1.0), (1.0, 1.0 / (length + 1e-6)), (1e9, 1.0), (length as f32 / 2.0, 0.5)]
        {
            let state = unmeasured(&case);
            norm::finish(&sums, max_norm, &state).unwrap();
            let actual = measured(&state);
            assert!((actual[0] / length - 1.0).abs() < 1e-6, "{actual:?}");
            assert!((actual[1] / factor - 1.0).abs() < 1e-6, "{actual:?} for {max_norm}");
        }
    }
}

#[test]
fn measuring_all_tensors_in_one_call_gives_the_same_bits_as_one_by_one() {
    for case in devices() {
        let table = Table::of_gradients(&case.device, LENGTHS.len()).unwrap();
        for round in 0..3 {
            // Every round has other addresses.
            let gradients = LENGTHS.map(|length| case.operand(&format!("{round}"), [length]).0);
            let [sums, apart] = [(); 2].map(|()| unwritten(&case, total()));
            let [state, expected] = [(); 2].map(|()| unmeasured(&case));
            let mut first = 0;
            for gradient in &gradients {
                let count = norm::chunks(gradient.elements());
                norm::chunk_sums(gradient, &apart.view(first, [count]).unwrap()).unwrap();
                first += count;
            }
            norm::finish(&apart, 0.5, &expected).unwrap();
            for _ in 0..repeats(20) {
                state.set_norm(f32::NAN, f32::NAN).unwrap();
                norm::measure(&table, &gradients, &sums, 0.5, &state).unwrap();
                assert_eq!(bits(&sums), bits(&apart), "{}", case.name());
                assert_eq!(bits(state.tensor()), bits(expected.tensor()), "{}", case.name());
            }
        }
        let one = [case.operand("x", [5]).0];
        let sums = single(&case, [0.0]);
        let error = norm::measure(&table, &one, &sums, 0.0, &unmeasured(&case)).unwrap_err().to_string();
        assert_eq!(error, "norm.measure: 1 tensors, expected 6");
    }
}

#[test]
fn each_group_has_the_norm_of_its_tensors() {
    for case in devices() {
        let sums = unwritten(&case, total());
        let groups = [2, 0, 2, 3, 0, 2];
        let mut chunk_groups = Vec::new();
        let mut squares = [0.0; 4];
        for (length, group) in LENGTHS.into_iter().zip(groups) {
            let (x, wide) = case.operand(&length.to_string(), [length]);
            squares[group] += wide.iter().map(|v| v * v).sum::<f64>();
            let first = chunk_groups.len();
            chunk_groups.resize(first + norm::chunks(length), group as u32);
            norm::chunk_sums(&x, &sums.view(first, [norm::chunks(length)]).unwrap()).unwrap();
        }
        let chunk_groups = tensor(&case.device, &chunk_groups, [total()]);
        let norms = unwritten(&case, 4);
        let state = unmeasured(&case);
        state.set_gradient_scale(0.5).unwrap();
        norm::group_norms(&sums, &chunk_groups, &norms, &state).unwrap();
        let first = bits(&norms);
        for (norm, squares) in read(&norms).iter().zip(squares) {
            let expected = 0.5 * squares.sqrt();
            assert!((norm - expected).abs() <= 1e-6 * expected, "{norm} and {expected}");
        }
        for _ in 0..repeats(20) {
            norm::group_norms(&sums, &chunk_groups, &norms, &state).unwrap();
            assert_eq!(bits(&norms), first, "{}", case.name());
        }
        let error = norm::group_norms(&sums, &sums, &norms, &state).unwrap_err().to_string();
        assert!(error.starts_with("norm.group_norms: groups is f32"), "{error}");
        let fewer = norm::group_norms(&norms, &chunk_groups, &norms, &state).unwrap_err().to_string();
        assert!(fewer.starts_with("norm.group_norms: groups"), "{fewer}");
    }
}

#[test]
fn a_part_that_begins_on_a_chunk_has_the_same_sums_as_the_whole() {
    for case in devices() {
        // One address that is no multiple of a vector, and one that is.
        for start in [0, 1] {
            let (all, _) = case.operand("x", [50_000 + start]);
            let x = all.view(start, [50_000]).unwrap();
            let sums = |x: &Tensor| {
                let count = norm::chunks(x.elements());
                let sums = unwritten(&case, count);
                norm::chunk_sums(x, &sums).unwrap();
                bits(&sums)
            };
            let cut = 5 * norm::CHUNK;
            let parts = [sums(&x.view(0, [cut]).unwrap()), sums(&x.view(cut, [50_000 - cut]).unwrap())];
            assert_eq!(sums(&x), parts.concat());
            let copy = case.tensor(&read(&x).iter().map(|x| *x as f32).collect::<Vec<_>>(), [50_000]);
            assert_eq!(sums(&x), sums(&copy), "alignment decides nothing");
        }
    }
}

#[test]
fn sums_of_parts_are_stored_at_their_places_and_the_rest_is_zero() {
    for case in devices() {
        let whole = LENGTHS.map(|length| case.operand("x", [length]).0);
        let all = unwritten(&case, total());
        let table = Table::of_parts(&case.device, LENGTHS.len()).unwrap();
        let firsts = LENGTHS.iter().scan(0, |next, length| {
            let first = *next;
            *next += norm::chunks(*length);
            Some(first)
        });
        let firsts: Vec<_> = firsts.collect();
        norm::part_sums(&table, &whole, &firsts, &all).unwrap();
        let expected = unwritten(&case, total());
        let gradients = Table::of_gradients(&case.device, LENGTHS.len()).unwrap();
        norm::measure(&gradients, &whole, &expected, 1.0, &unmeasured(&case)).unwrap();
        assert_eq!(bits(&all), bits(&expected), "{}", case.name());
        // The part of the longest tensor from its fourth chunk on, and a whole other tensor.
        let table = Table::of_parts(&case.device, 2).unwrap();
        let cut = 3 * norm::CHUNK;
        let parts = [whole[4].view(cut, [LENGTHS[4] - cut]).unwrap(), whole[1].clone()];
        for _ in 0..3 {
            norm::part_sums(&table, &parts, &[firsts[4] + 3, firsts[1]], &all).unwrap();
            let mut expected_bits = vec![0f32.to_bits(); total()];
            for range in [firsts[4] + 3..firsts[5], firsts[1]..firsts[2]] {
                expected_bits[range.clone()].copy_from_slice(&bits(&expected)[range]);
            }
            assert_eq!(bits(&all), expected_bits, "{}", case.name());
        }
        let none = Table::of_parts(&case.device, 0).unwrap();
        norm::part_sums(&none, &[], &[], &all).unwrap();
        assert_eq!(bits(&all), vec![0; total()]);
        assert!(norm::part_sums(&table, &parts, &[total(), 0], &all).is_err());
        assert!(norm::part_sums(&table, &parts, &[0], &all).is_err());
    }
}

#[test]
fn a_norm_that_is_not_finite_is_reported() {
    for case in devices() {
        let state = unmeasured(&case);
        norm::finish(&single(&case, [1.0, f32::NAN]), 1.0, &state).unwrap();
        assert!(measured(&state).iter().all(|v| v.is_nan()));
        norm::finish(&single(&case, [f32::INFINITY]), 1.0, &state).unwrap();
        assert_eq!(measured(&state), [f64::INFINITY, 0.0]);
    }
}

#[test]
fn the_norm_includes_the_gradient_scale() {
    for case in devices() {
        let state = unmeasured(&case);
        state.set_gradient_scale(0.25).unwrap();
        norm::finish(&single(&case, [9.0, 16.0]), 1.0, &state).unwrap();
        let [norm, factor] = measured(&state);
        assert_eq!(norm, 1.25, "{}", case.name());
        assert!((factor - 0.8).abs() < 1e-6, "{}", case.name());
    }
}

#[test]
fn a_norm_above_its_bound_sets_the_skip_flag() {
    for case in devices() {
        let state = unmeasured(&case);
        // The sums' norm is 5.
        for (skip, expected) in
            [(4.9, 1), (0.0, 1), (5.0, 0), (f32::INFINITY, 0), (1.0, 1), (5.1, 0), (0.0, 0)]
        {
            let bounds = norm::NormBounds { clip: 1.0, skip };
            norm::finish(&single(&case, [9.0, 16.0]), bounds, &state).unwrap();
            let words = state.tensor().to_vec::<f32>().unwrap();
            assert_eq!(words[4].to_bits(), expected, "{}, {skip}", case.name());
        }
    }
}
