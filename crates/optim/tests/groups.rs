//! Groups of one optimizer give the same bits as a separate optimizer for each group.

use device::{Category, DType, Device, DeviceOptions, Request};
use optim::{GroupOptions, Optimizer, Slot, StateOptions, StepState, UpdateRule};
use tensor::{Tensor, TensorError};

const ADAMW: UpdateRule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1 };
const SGD: UpdateRule = UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.2 };
const LENGTHS: [usize; 5] = [5, 10_000, 1, 300, 9000];
/// Slots of each rule's group.
const MEMBERS: [&[usize]; 2] = [&[0, 3, 4], &[1, 2]];

fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + seed * 101) % 97) as f32 / 97.0 - 0.5).collect()
}

fn slots(device: &Device, dtype: DType, indices: &[usize]) -> Vec<Slot> {
    let slot = |index: &usize| {
        let request = Request::new(Category::Parameter, "weight");
        let weight = Tensor::zeros(device, [LENGTHS[*index]], dtype, request).unwrap();
        Slot { name: format!("w{index}"), weight, decay: index.is_multiple_of(2) }
    };
    indices.iter().map(slot).collect()
}

fn group(rule: UpdateRule, dtype: DType, slots: &[usize]) -> GroupOptions {
    let states = StateOptions { dtype, seed: 7, firsts: Vec::new(), average: true };
    GroupOptions { rule, rate_factor: 1.0, states, slots: slots.to_vec() }
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes()];
    tensor.read_bytes(&mut bytes).unwrap();
    bytes
}

/// An array in a checkpoint: name, type, number of parameter elements per array element, and bytes.
type Saved = (String, DType, usize, Vec<u8>);

/// Makes four updates of the slots `indices`, skipping the third, and returns the state of every slot.
fn updated(
    weights: DType,
    indices: &[usize],
    groups: &[GroupOptions],
    (first, rate): (usize, f32),
) -> Vec<(usize, Vec<Saved>)> {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let slots = slots(&device, weights, indices);
    let optimizer = Optimizer::with_groups((&device, None), &slots, groups, first).unwrap();
    for (master, index) in optimizer.masters().zip(indices) {
        master.set(&values(*index, LENGTHS[*index])).unwrap();
    }
    optimizer.begin_averages().unwrap();
    let state = StepState::new(&device).unwrap();
    for step in 1..=4 {
        let gradient = |index: &usize| {
            let values = values(10 * step + index, LENGTHS[*index]);
            Tensor::from_host(&device, &values, [LENGTHS[*index]], Category::Gradient).unwrap()
        };
        let gradients: Vec<_> = indices.iter().map(gradient).collect();
        state.set_learning_rate(rate * step as f32).unwrap();
        state.set_average_fraction(0.25).unwrap();
        state.set_norm(if step == 3 { f32::INFINITY } else { 2.0 }, 0.5).unwrap();
        optimizer.update_first_slots(&gradients, &state).unwrap();
        optimizer.update_other_slots(&gradients, &state).unwrap();
    }
    assert_eq!(state.updates().unwrap(), 3);
    let mut saved: Vec<_> = indices.iter().map(|index| (*index, Vec::new())).collect();
    for (slot, master) in optimizer.masters().enumerate() {
        saved[slot].1.push((format!("w{}", indices[slot]), DType::F32, 1, bytes(master)));
        saved[slot].1.push((String::new(), weights, 1, bytes(&slots[slot].weight)));
    }
    for state in optimizer.named_state() {
        let array = state.array;
        saved[state.slot].1.push((array.name, array.dtype, array.per, bytes(state.tensor)));
    }
    saved
}

#[test]
fn two_groups_of_different_rules_equal_two_optimizers() {
    for (weights, states) in [
        (DType::F32, [DType::F32, DType::F32]),
        (DType::Bf16, [DType::F32, DType::F32]),
        (DType::Bf16, [DType::Bf16, DType::U8]),
    ] {
        let alone = |(rule, indices, states): (UpdateRule, &[usize], DType)| {
            let all: Vec<_> = (0..indices.len()).collect();
            updated(weights, indices, &[group(rule, states, &all)], (0, 0.01))
        };
        let adamw = alone((ADAMW, MEMBERS[0], states[0]));
        let sgd = alone((SGD, MEMBERS[1], states[1]));
        let mut expected = [adamw, sgd].concat();
        expected.sort_by_key(|(slot, _)| *slot);
        let names = |saved: &[Saved]| saved.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>();
        assert!(names(&expected[0].1).contains(&"adamw.second.w0".to_owned()));
        assert!(names(&expected[0].1).contains(&"ema.w0".to_owned()));
        assert!(names(&expected[1].1).contains(&"sgd.velocity.w1".to_owned()));
        for first in [0, 1, 2, 4, 5] {
            let groups = [group(ADAMW, states[0], MEMBERS[0]), group(SGD, states[1], MEMBERS[1])];
            assert!(
                updated(weights, &[0, 1, 2, 3, 4], &groups, (first, 0.01)) == expected,
                "{weights} {first}"
            );
        }
    }
}

#[test]
fn a_rate_factor_is_a_higher_learning_rate_of_its_group() {
    for rule in [ADAMW, SGD, UpdateRule::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1 }] {
        let alone = |indices: &[usize], rate: f32| {
            let all: Vec<_> = (0..indices.len()).collect();
            updated(DType::F32, indices, &[group(rule, DType::F32, &all)], (0, rate))
        };
        let mut expected = [alone(MEMBERS[0], 0.01 * 16.0), alone(MEMBERS[1], 0.01)].concat();
        expected.sort_by_key(|(slot, _)| *slot);
        let slow = group(rule, DType::F32, MEMBERS[1]);
        let fast = GroupOptions { rate_factor: 16.0, ..group(rule, DType::F32, MEMBERS[0]) };
        for first in [0, 2, 5] {
            for groups in [[fast.clone(), slow.clone()], [slow.clone(), fast.clone()]] {
                let actual = updated(DType::F32, &[0, 1, 2, 3, 4], &groups, (first, 0.01));
                assert!(actual == expected, "{rule:?} {first}");
            }
        }
    }
}

#[test]
fn every_slot_belongs_to_one_group() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let slots = slots(&device, DType::F32, &[0, 1, 2]);
    for (other, count) in [(&[1][..], 2), (&[0, 1, 2], 4), (&[], 1)] {
        let groups = [group(ADAMW, DType::F32, &[0]), group(SGD, DType::F32, other)];
        let refused = Optimizer::with_groups((&device, None), &slots, &groups, 0).unwrap_err();
        let expected = TensorError::Count { operator: "optimizer.groups", actual: count, expected: 3 };
        assert_eq!(refused.to_string(), expected.to_string());
    }
}
