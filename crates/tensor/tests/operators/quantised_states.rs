//! 8-bit optimizer states.

use tensor::ops::optimizer::{self, BLOCK, Item, Stream, UpdateRule, blocks};
use tensor::ops::{StepState, Table};
use tensor::{DType, Tensor};

use crate::support::{Case, bits, devices, read, tensor, typed};

const ADAMW: UpdateRule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
const MOMENTUM: UpdateRule = UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.01 };

/// Several chunks of a shard, and a partial block.
const LENGTH: usize = 3 * tensor::ops::norm::CHUNK + 77;

/// A weight with 8-bit or f32 states, and its copy in bf16.
struct Parameter {
    weight: Tensor,
    states: Vec<Tensor>,
    maxima: Vec<Tensor>,
    compute: Tensor,
}

impl Parameter {
    fn new(case: &Case, rule: &UpdateRule, range: std::ops::Range<usize>, dtype: DType) -> Self {
        let device = &case.device;
        let length = range.len();
        let weight = case.single().operand("w", [LENGTH]).0.view(range.start, [length]).unwrap();
        let zeros = |dtype, count: usize| match dtype {
            DType::U8 => {
                let category = device::Category::OptimizerState;
                Tensor::from_host(device, &vec![0u8; count], [count], category).unwrap()
            }
            _ => tensor(device, &vec![0.0; count], [count]),
        };
        let all = |dtype, count| rule.states().iter().map(|_| zeros(dtype, count)).collect();
        let maxima = if dtype == DType::U8 { all(DType::F32, blocks(length)) } else { Vec::new() };
        let compute = typed(device, DType::Bf16, &vec![0.0; length], [length]);
        Parameter { weight, states: all(dtype, length), maxima, compute }
    }

    fn update(&self, rule: &UpdateRule, gradient: &Tensor, state: &StepState) {
        let Parameter { weight, states, maxima, compute } = self;
        let compute = Some(compute);
        let stream = Stream::default();
        let item = Item { weight, gradient, states, maxima, compute, decay: true, stream };
        let table = match maxima.is_empty() {
            true => Table::of_parameters(weight.device(), 1).unwrap(),
            false => Table::of_quantised(weight.device(), 1).unwrap(),
        };
        optimizer::begin(rule, state).unwrap();
        optimizer::update(&table, rule, &[item], state).unwrap();
    }

    fn codes(&self) -> Vec<Vec<u8>> {
        self.states.iter().map(|codes| codes.to_vec().unwrap()).collect()
    }

    /// Returns the bits of all tensors, the codes first.
    fn all_bits(&self) -> (Vec<Vec<u8>>, Vec<Vec<u32>>) {
        let tensors = [&self.weight, &self.compute].into_iter().chain(&self.maxima);
        (self.codes(), tensors.map(bits).collect())
    }
}

fn step_state(case: &Case) -> StepState {
    let state = StepState::new(&case.device).unwrap();
    state.set_learning_rate(0.01).unwrap();
    state
}

/// Returns the fractions of the paper's dynamic tree code: means between evenly spaced borders of each
/// decade.
fn fractions(is_signed: bool) -> Vec<f64> {
    let mut all = vec![0.0, 1.0];
    for decade in 0..7u32 {
        let count = if is_signed { 1 << decade } else { 2 << decade };
        let border = |item: i32| 0.1 + 0.9 * f64::from(item) / f64::from(count);
        for item in 0..count {
            let mean = (border(item) + border(item + 1)) / 2.0 * 10f64.powi(decade as i32 - 6);
            all.push(mean);
            all.extend(is_signed.then_some(-mean));
        }
    }
    all.sort_by(f64::total_cmp);
    assert_eq!(all.len(), 256);
    all
}

/// After the first update, every code is the nearest to the value that an f32 state would have.
#[test]
fn codes_are_the_nearest_fractions_of_the_largest_in_a_block() {
    for case in devices() {
        for rule in [ADAMW, MOMENTUM] {
            let (gradient, _) = case.operand("g", [LENGTH]);
            let [coded, exact] = [DType::U8, DType::F32].map(|dtype| {
                let parameter = Parameter::new(&case, &rule, 0..LENGTH, dtype);
                parameter.update(&rule, &gradient, &step_state(&case));
                parameter
            });
            for (number, state) in rule.states().iter().enumerate() {
                let codes = coded.codes()[number].clone();
                let exact = read(&exact.states[number]);
                let maxima = read(&coded.maxima[number]);
                let fractions = fractions(state.is_signed);
                for ((codes, exact), maximum) in codes.chunks(BLOCK).zip(exact.chunks(BLOCK)).zip(maxima) {
                    let largest = exact.iter().fold(0.0f64, |most, value| most.max(value.abs()));
                    assert!((maximum - largest).abs() <= 1e-6 * largest, "{}", case.name());
                    for (code, value) in codes.iter().zip(exact) {
                        let off = |fraction: f64| (fraction * maximum - value).abs();
                        let nearest =
                            fractions.iter().map(|fraction| off(*fraction)).fold(f64::MAX, f64::min);
                        let fraction = fractions[usize::from(*code)];
                        let lifted = !state.is_signed && *code == 1 && *value > 0.0;
                        let near = off(fraction) <= nearest + 1e-6 * maximum;
                        assert!(near || lifted, "{value} of {maximum} as {fraction}, {}", case.name());
                        assert!(state.is_signed || *value == 0.0 || *code > 0, "{}", case.name());
                    }
                }
            }
            // The first update is computed before states are rounded.
            let close =
                read(&coded.weight).iter().zip(read(&exact.weight)).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(close, "{rule:?}, {}", case.name());
        }
    }
}

/// Updates of a shard equal updates of the whole, and repeated updates have equal bits.
#[test]
fn blocks_do_not_depend_on_shards() {
    const FIRST: usize = tensor::ops::norm::CHUNK;
    for case in devices() {
        for rule in [ADAMW, MOMENTUM] {
            let run = |range: std::ops::Range<usize>| {
                let (parameter, state) =
                    (Parameter::new(&case, &rule, range.clone(), DType::U8), step_state(&case));
                for step in 0..3 {
                    let (gradient, _) = case.operand(&format!("g{step}"), [LENGTH]);
                    parameter.update(&rule, &gradient.view(range.start, [range.len()]).unwrap(), &state);
                }
                parameter.all_bits()
            };
            let whole = run(0..LENGTH);
            let part = run(FIRST..LENGTH);
            assert!(whole == run(0..LENGTH), "{rule:?}, {}", case.name());
            for (whole, part) in whole.0.iter().zip(&part.0) {
                assert!(whole[FIRST..] == part[..], "{rule:?}, {}", case.name());
            }
            for (number, (whole, part)) in whole.1.iter().zip(&part.1).enumerate() {
                let first = if number < 2 { FIRST } else { FIRST / BLOCK };
                assert!(whole[first..] == part[..], "{rule:?}, {number}, {}", case.name());
            }
        }
    }
}

#[test]
fn a_skipped_update_leaves_codes_and_maxima() {
    for case in devices() {
        let parameter = Parameter::new(&case, &ADAMW, 0..LENGTH, DType::U8);
        let state = step_state(&case);
        let (gradient, _) = case.operand("g", [LENGTH]);
        parameter.update(&ADAMW, &gradient, &state);
        let before = parameter.all_bits();
        state.set_skip(true).unwrap();
        parameter.update(&ADAMW, &gradient, &state);
        assert!(before == parameter.all_bits(), "{}", case.name());
        state.set_skip(false).unwrap();
        parameter.update(&ADAMW, &gradient, &state);
        assert!(before != parameter.all_bits(), "{}", case.name());
    }
}
