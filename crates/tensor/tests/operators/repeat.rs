use std::sync::atomic::{AtomicBool, Ordering};

use device::{Device, DeviceOptions};
use tensor::DType;
use tensor::ops::{Activation, linear};

use crate::support::{bits, gpu, operand, repeats};
use crate::trial::follow_all;

const TIMES: usize = 5;
/// Types of operands and of weight gradients.
const TYPES: [[DType; 2]; 4] = [
    [DType::F32, DType::F32],
    [DType::Bf16, DType::F32],
    [DType::F16, DType::F16],
    [DType::Bf16, DType::Bf16],
];

#[test]
fn a_busy_gpu_gives_the_same_bits_every_time() {
    if gpu().is_none() {
        return;
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| keep_busy(&done));
        let repeated = std::panic::catch_unwind(|| TYPES.map(repeat));
        done.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
        if let Err(failed) = repeated {
            std::panic::resume_unwind(failed);
        }
    });
}

/// Runs matmuls that leave some multiprocessors idle, until `done` is set. Returns their number.
fn keep_busy(done: &AtomicBool) -> usize {
    let device = Device::cuda(1, 0, tensor::ops::FAMILIES, &DeviceOptions::default()).unwrap();
    let (x, _) = operand(&device, "x", [1024, 512]);
    let (weight, _) = operand(&device, "weight", [768, 512]);
    let mut products = 0;
    while !done.load(Ordering::Relaxed) {
        for _ in 0..20 {
            linear::forward(&x, &weight, None, Activation::None).unwrap();
        }
        device.synchronize().unwrap();
        products += 20;
    }
    products
}

fn repeat([dtype, gradients]: [DType; 2]) {
    let device = Device::cuda(0, 0, tensor::ops::FAMILIES, &DeviceOptions::default()).unwrap();
    let results = || {
        let mut results = vec![];
        follow_all(&device, [dtype, gradients], &mut |operator, part, result| {
            results.push((operator, part, bits(result)));
        });
        results
    };
    let first = results();
    for time in 1..=repeats(TIMES) {
        for ((operator, part, expected), (_, _, actual)) in first.iter().zip(results()) {
            assert!(*expected == actual, "{operator} {part} in {dtype} differs at repetition {time}");
        }
    }
    assert!(first.len() > 500);
}
