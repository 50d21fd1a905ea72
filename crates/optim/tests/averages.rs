//! Averages of weights, wherever state and weights are.

use device::{Category, DType, Device, DeviceOptions, Request};
use half::bf16;
use optim::{ComputeValues, GroupOptions, Optimizer, Slot, StateOptions, StepState, UpdateRule};
use tensor::Tensor;

const RULE: UpdateRule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1 };
const LENGTHS: [usize; 3] = [5, 30_000, 300];

/// Memory of weights and state.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Home {
    Device,
    StateInPool,
    AllInPool,
}

fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + seed * 101) % 97) as f32 / 97.0 - 0.5).collect()
}

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

struct Trained {
    device: Device,
    optimizer: Optimizer,
    state: StepState,
}

impl Trained {
    fn new(home: Home, dtype: DType) -> Self {
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let host = (home != Home::Device).then(|| device.host_pool().unwrap());
        let of_weights = host.as_ref().filter(|_| home == Home::AllInPool).unwrap_or(&device);
        let slot = |(index, length): (usize, usize)| {
            let request = Request::new(Category::Parameter, "weight");
            let weight = Tensor::zeros(of_weights, [length], dtype, request).unwrap();
            Slot { name: format!("w{index}"), weight, decay: true }
        };
        let slots: Vec<Slot> = LENGTHS.into_iter().enumerate().map(slot).collect();
        let mut group = GroupOptions::all(RULE, slots.len());
        group.states = StateOptions { average: true, ..StateOptions::default() };
        let optimizer = Optimizer::with_groups((&device, host.as_ref()), &slots, &[group], 1).unwrap();
        for (slot, master) in optimizer.masters().enumerate() {
            master.set(&values(slot, LENGTHS[slot])).unwrap();
        }
        optimizer.round_masters().unwrap();
        let state = StepState::new(&device).unwrap();
        state.set_norm(1.0, 1.0).unwrap();
        state.set_learning_rate(0.1).unwrap();
        Trained { device, optimizer, state }
    }

    fn step(&self, seed: usize) {
        let gradient = |(index, length): (usize, usize)| {
            Tensor::from_host(&self.device, &values(seed + index, length), [length], Category::Gradient)
                .unwrap()
        };
        let gradients: Vec<Tensor> = LENGTHS.into_iter().enumerate().map(gradient).collect();
        self.optimizer.step(&gradients, &self.state).unwrap();
    }

    fn masters(&self) -> Vec<Vec<f32>> {
        self.optimizer.masters().map(|master| master.to_vec().unwrap()).collect()
    }

    fn averages(&self) -> Vec<Vec<f32>> {
        let states = self.optimizer.named_state().filter(|state| state.array.name.starts_with("ema."));
        states.map(|state| state.tensor.to_vec().unwrap()).collect()
    }

    /// Returns the weights that passes compute with.
    fn weights(&self) -> Vec<Vec<f32>> {
        let widened = |weight: &Tensor| match weight.dtype() {
            DType::F32 => weight.to_vec().unwrap(),
            _ => weight.to_vec::<bf16>().unwrap().into_iter().map(bf16::to_f32).collect(),
        };
        self.optimizer.slots().iter().map(|slot| widened(&slot.weight)).collect()
    }
}

fn rounded(dtype: DType, values: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let round = |value: &f32| if dtype == DType::F32 { *value } else { bf16::from_f32(*value).to_f32() };
    values.iter().map(|values| values.iter().map(round).collect()).collect()
}

#[test]
fn averages_begin_as_the_weights_and_move_towards_them_after_each_update() {
    for home in [Home::Device, Home::StateInPool, Home::AllInPool] {
        for dtype in [DType::F32, DType::Bf16] {
            let trained = Trained::new(home, dtype);
            trained.optimizer.begin_averages().unwrap();
            assert_eq!(trained.averages(), trained.masters(), "{home:?} {dtype}");
            for (step, fraction) in [0.25, 0.0, 1.0, 0.125].into_iter().enumerate() {
                let mut expected = trained.averages();
                trained.state.set_average_fraction(fraction).unwrap();
                trained.step(step);
                for (averages, masters) in expected.iter_mut().zip(trained.masters()) {
                    for (average, master) in averages.iter_mut().zip(masters) {
                        let moved = fraction.mul_add(master - *average, *average);
                        *average = if fraction == 1.0 { master } else { moved };
                    }
                }
                assert_eq!(trained.averages(), expected, "{home:?} {dtype} {fraction}");
                assert_eq!(trained.weights(), rounded(dtype, &trained.masters()), "{home:?} {dtype}");
            }
        }
    }
}

/// Passes compute with averages and then with the same weights as before, bit for bit, and training goes
/// on as without the change.
#[test]
fn passes_compute_with_averages_and_then_with_the_weights_again() {
    for home in [Home::Device, Home::StateInPool, Home::AllInPool] {
        for dtype in [DType::F32, DType::Bf16] {
            let run = |validates: bool| {
                let trained = Trained::new(home, dtype);
                trained.optimizer.begin_averages().unwrap();
                trained.state.set_average_fraction(0.5).unwrap();
                trained.step(1);
                if validates {
                    let weights = trained.weights();
                    let averages = trained.averages();
                    let expected = rounded(dtype, &averages);
                    assert_ne!(weights, expected, "{home:?} {dtype}");
                    trained.optimizer.compute_with(ComputeValues::Averages).unwrap();
                    assert_eq!(trained.weights(), expected, "{home:?} {dtype}");
                    trained.optimizer.compute_with(ComputeValues::Masters).unwrap();
                    assert_eq!(trained.weights(), weights, "{home:?} {dtype}");
                    assert_eq!(trained.averages(), averages, "{home:?} {dtype}");
                }
                trained.step(2);
                let all = [trained.masters(), trained.averages(), trained.weights()].concat();
                all.into_iter().map(bits).collect::<Vec<_>>()
            };
            assert!(run(true) == run(false), "{home:?} {dtype}");
        }
    }
}

/// Averages take the bytes of f32 weights, on the device or in the pool.
#[test]
fn averages_take_four_bytes_an_element_of_optimizer_state() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let host = device.host_pool().unwrap();
    let weight = Tensor::zeros(&device, [1024], DType::Bf16, Request::new(Category::Parameter, "w")).unwrap();
    let slots = [Slot { name: "w".into(), weight, decay: false }];
    let bytes = |home: Option<&Device>, average: bool| {
        let mut group = GroupOptions::all(RULE, 1);
        group.states = StateOptions { average, ..StateOptions::default() };
        let before = home.unwrap_or(&device).statistics().allocated();
        let optimizer = Optimizer::with_groups((&device, home), &slots, &[group], 0).unwrap();
        let state: usize = optimizer.named_state().map(|state| state.tensor.bytes()).sum();
        (home.unwrap_or(&device).statistics().allocated() - before, state)
    };
    for home in [None, Some(&host)] {
        let without = bytes(home, false);
        let with = bytes(home, true);
        assert_eq!((with.0 - without.0, with.1 - without.1), (4096, 4096));
    }
}
