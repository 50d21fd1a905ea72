//! An update in two calls gives the same bits as one call, of weights, states and averages.

use device::{Category, DType, Device, DeviceOptions, Request};
use optim::{GradientNorm, GroupOptions, Optimizer, Slot, StateOptions, UpdateRule};
use tensor::Tensor;

const LENGTHS: [usize; 4] = [5, 30_000, 1, 300];

fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + seed * 101) % 97) as f32 / 97.0 - 0.5).collect()
}

/// Returns the bits of all weights and states after three updates. The first call updates the first `first`
/// slots. With `offloads`, states, of type `states`, are in a host pool.
fn updated(
    rule: UpdateRule,
    dtype: DType,
    states: DType,
    (first, offloads): (Option<usize>, bool),
) -> Vec<Vec<u32>> {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let host = offloads.then(|| device.host_pool().unwrap());
    let slot = |(index, length): (usize, usize)| {
        let weight =
            Tensor::zeros(&device, [length], dtype, Request::new(Category::Parameter, "weight")).unwrap();
        Slot { name: format!("w{index}"), weight, decay: index % 2 == 0 }
    };
    let slots: Vec<Slot> = LENGTHS.into_iter().enumerate().map(slot).collect();
    let mut group = GroupOptions::all(rule, slots.len());
    group.states = StateOptions { dtype: states, seed: 7, firsts: vec![0, 8192], average: true };
    let devices = (&device, host.as_ref());
    let optimizer = Optimizer::with_groups(devices, &slots, &[group], first.unwrap_or(0)).unwrap();
    if dtype == DType::F32 {
        for (index, slot) in slots.iter().enumerate() {
            slot.weight.set(&values(index, LENGTHS[index])).unwrap();
        }
    }
    let fill = |slot: usize, first: usize, master: &Tensor| {
        master.set(&values(slot, LENGTHS[slot])[first..first + master.elements()])
    };
    optimizer.fill_masters(fill).unwrap();
    optimizer.round_masters().unwrap();
    for (slot, master) in optimizer.masters().enumerate() {
        assert_eq!(master.to_vec::<f32>().unwrap(), values(slot, LENGTHS[slot]));
    }
    optimizer.begin_averages().unwrap();
    let norm = GradientNorm::new(&device, &slots, 1.0).unwrap();
    for step in 1..=3 {
        let gradient = |(index, length): (usize, usize)| {
            let values = values(10 * step + index, length);
            Tensor::from_host(&device, &values, [length], Category::Gradient).unwrap()
        };
        let gradients: Vec<Tensor> = LENGTHS.into_iter().enumerate().map(gradient).collect();
        norm.measure(&gradients).unwrap();
        let state = norm.state();
        state.set_learning_rate(0.01 * step as f32).unwrap();
        state.set_average_fraction([0.25, 0.0, 0.5][step - 1]).unwrap();
        match first {
            None => optimizer.step(&gradients, state).unwrap(),
            Some(_) => {
                optimizer.update_first_slots(&gradients, state).unwrap();
                optimizer.update_other_slots(&gradients, state).unwrap();
            }
        }
        assert_eq!(state.updates().unwrap() as usize, step);
    }
    let states = optimizer.named_state().map(|state| bits(state.tensor));
    optimizer.slots().iter().map(|slot| bits(&slot.weight)).chain(states).collect()
}

/// Returns the bits of all elements.
fn bits(tensor: &Tensor) -> Vec<u32> {
    match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect(),
        DType::U8 => tensor.to_vec::<u8>().unwrap().into_iter().map(u32::from).collect(),
        _ => {
            let values = tensor.to_vec::<half::bf16>().unwrap().into_iter();
            values.map(|value| u32::from(value.to_bits())).collect()
        }
    }
}

const RULES: [UpdateRule; 3] = [
    UpdateRule::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1 },
    UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.1 },
    UpdateRule::Sgd { momentum: 0.0, weight_decay: 0.1 },
];

#[test]
fn any_number_of_slots_may_come_first() {
    for rule in RULES {
        for dtype in [DType::F32, DType::Bf16] {
            let one = updated(rule, dtype, DType::F32, (None, false));
            assert!(one.iter().flatten().any(|bits| *bits != 0));
            for first in [0, 1, 3, 4, 9] {
                let calls = (Some(first), false);
                assert!(updated(rule, dtype, DType::F32, calls) == one, "{rule:?} {dtype} {first}");
            }
        }
    }
}

#[test]
fn offloaded_state_gives_the_same_bits() {
    let lion = UpdateRule::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1 };
    for rule in RULES.into_iter().chain([lion]) {
        for dtype in [DType::F32, DType::Bf16] {
            for states in [DType::F32, DType::Bf16, DType::U8] {
                let on_device = updated(rule, dtype, states, (None, false));
                assert!(on_device.iter().flatten().any(|bits| *bits != 0));
                for first in [None, Some(1), Some(2), Some(4)] {
                    let offloaded = updated(rule, dtype, states, (first, true));
                    assert!(offloaded == on_device, "{rule:?} {dtype} {states} {first:?}");
                }
            }
        }
    }
}

#[test]
fn kept_tensors_have_stable_names() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let names = [&["adamw.first", "adamw.second"][..], &["sgd.velocity"], &[]];
    for (rule, names) in RULES.into_iter().zip(names) {
        for dtype in [DType::F32, DType::Bf16] {
            let slot = |name: &str, shape: [usize; 2]| {
                let request = Request::new(Category::Parameter, "weight");
                let weight = Tensor::zeros(&device, shape, dtype, request).unwrap();
                Slot { name: name.to_owned(), weight, decay: true }
            };
            let slots = [slot("a.weight", [2, 3]), slot("b.weight", [4, 1])];
            let optimizer = Optimizer::new(&device, &slots, rule).unwrap();
            let mut expected = Vec::new();
            for (index, slot) in slots.iter().enumerate() {
                // An f32 weight is its own master.
                expected.extend((dtype != DType::F32).then(|| (index, slot.name.clone())));
                expected.extend(names.iter().map(|name| (index, format!("{name}.{}", slot.name))));
            }
            let actual: Vec<_> =
                optimizer.named_state().map(|state| (state.slot, state.array.name)).collect();
            assert_eq!(actual, expected, "{rule:?} {dtype}");
            for state in optimizer.named_state() {
                assert_eq!(state.tensor.dtype(), DType::F32);
                assert_eq!(state.tensor.shape(), slots[state.slot].weight.shape());
            }
        }
    }
}
