//! An update in two calls is the update in one.
#![allow(missing_docs, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

use device::{Category, DType, Device, DeviceOptions, Request};
use optim::{GradientNorm, Kind, Optimizer, Slot};
use tensor::Tensor;

const LENGTHS: [usize; 4] = [5, 10_000, 1, 300];

fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + seed * 101) % 97) as f32 / 97.0 - 0.5).collect()
}

/// Bits of all weights and states after three updates, of which the first `first` slots are in a call of their own.
fn updated(kind: Kind, dtype: DType, first: Option<usize>) -> Vec<Vec<u32>> {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let slot = |(index, length): (usize, usize)| {
        let weight =
            Tensor::zeros(&device, [length], dtype, Request::new(Category::Parameter, "weight")).unwrap();
        Slot { name: format!("w{index}"), weight, decay: index % 2 == 0 }
    };
    let slots: Vec<Slot> = LENGTHS.into_iter().enumerate().map(slot).collect();
    let mut optimizer = match first {
        None => Optimizer::new(&device, &slots, kind, 0.1).unwrap(),
        Some(first) => Optimizer::in_two_calls(&device, &slots, kind, 0.1, first).unwrap(),
    };
    for (index, state) in optimizer.states().iter().enumerate() {
        state.master.set(&values(index, LENGTHS[index])).unwrap();
    }
    let norm = GradientNorm::new(&device, &slots, 1.0).unwrap();
    for step in 1..=3 {
        let gradient = |(index, length): (usize, usize)| {
            let values = values(10 * step + index, length);
            Tensor::from_host(&device, &values, [length], Category::Gradient).unwrap()
        };
        let gradients: Vec<Tensor> = LENGTHS.into_iter().enumerate().map(gradient).collect();
        norm.measure(&gradients).unwrap();
        let rate = 0.01 * step as f32;
        match first {
            None => optimizer.step(&gradients, rate, Some(&norm)).unwrap(),
            Some(_) => {
                optimizer.step_first(&gradients, rate, Some(&norm)).unwrap();
                assert_eq!(optimizer.steps() as usize, step - 1);
                optimizer.step_rest(&gradients, rate, Some(&norm)).unwrap();
            }
        }
        assert_eq!(optimizer.steps() as usize, step);
    }
    let f32s = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    let weight = |slot: &Slot| match dtype {
        DType::F32 => f32s(&slot.weight),
        _ => {
            slot.weight.to_vec::<half::bf16>().unwrap().into_iter().map(|v| u32::from(v.to_bits())).collect()
        }
    };
    let states = optimizer.states().iter().flat_map(|state| {
        [Some(&state.master), state.first.as_ref(), state.second.as_ref()].into_iter().flatten()
    });
    optimizer.slots().iter().map(weight).chain(states.map(f32s)).collect()
}

#[test]
fn any_slots_may_come_first() {
    let adamw = Kind::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
    for kind in [adamw, Kind::Sgd { momentum: 0.9 }, Kind::Sgd { momentum: 0.0 }] {
        for dtype in [DType::F32, DType::Bf16] {
            let one = updated(kind, dtype, None);
            assert!(one.iter().flatten().any(|bits| *bits != 0));
            for first in [0, 1, 3, 4, 9] {
                assert!(updated(kind, dtype, Some(first)) == one, "{kind:?} {dtype} {first}");
            }
        }
    }
}
