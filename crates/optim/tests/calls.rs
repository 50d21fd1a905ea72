//! An update in two calls gives the same bits as one call.
#![allow(missing_docs, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

use device::{Category, DType, Device, DeviceOptions, Request};
use optim::{GradientNorm, GroupOptions, Optimizer, Slot, UpdateRule};
use tensor::Tensor;

const LENGTHS: [usize; 4] = [5, 10_000, 1, 300];

fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + seed * 101) % 97) as f32 / 97.0 - 0.5).collect()
}

/// Returns the bits of all weights and states after three updates; the first `first` slots have a call of
/// their own.
fn updated(rule: UpdateRule, dtype: DType, first: Option<usize>) -> Vec<Vec<u32>> {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let slot = |(index, length): (usize, usize)| {
        let weight =
            Tensor::zeros(&device, [length], dtype, Request::new(Category::Parameter, "weight")).unwrap();
        Slot { name: format!("w{index}"), weight, decay: index % 2 == 0 }
    };
    let slots: Vec<Slot> = LENGTHS.into_iter().enumerate().map(slot).collect();
    let optimizer = match first {
        None => Optimizer::new(&device, &slots, rule).unwrap(),
        Some(first) => {
            let group = GroupOptions::all(rule, slots.len());
            Optimizer::with_groups(&device, &slots, &[group], first).unwrap()
        }
    };
    for (index, master) in optimizer.masters().enumerate() {
        master.set(&values(index, LENGTHS[index])).unwrap();
    }
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
        match first {
            None => optimizer.step(&gradients, state).unwrap(),
            Some(_) => {
                optimizer.update_first_slots(&gradients, state).unwrap();
                optimizer.update_other_slots(&gradients, state).unwrap();
            }
        }
        assert_eq!(state.updates().unwrap() as usize, step);
    }
    let f32s = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    let weight = |slot: &Slot| match dtype {
        DType::F32 => f32s(&slot.weight),
        _ => {
            slot.weight.to_vec::<half::bf16>().unwrap().into_iter().map(|v| u32::from(v.to_bits())).collect()
        }
    };
    let states = optimizer.named_state().map(|state| f32s(state.tensor));
    optimizer.slots().iter().map(weight).chain(states).collect()
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
            let one = updated(rule, dtype, None);
            assert!(one.iter().flatten().any(|bits| *bits != 0));
            for first in [0, 1, 3, 4, 9] {
                assert!(updated(rule, dtype, Some(first)) == one, "{rule:?} {dtype} {first}");
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
