use std::sync::atomic::{AtomicBool, Ordering};

use device::{Device, DeviceOptions};
use tensor::DType;
use tensor::ops::{Activation, linear};

use crate::scenario::{Sizes, every_operator};
use crate::support::{bits, gpu, operand, repeats};

const TIMES: usize = 100;
/// Several blocks of every kernel, and both frequent and rare tokens.
const SIZES: [Sizes; 5] = [
    Sizes::new([4, 160, 256, 4, 700], DType::F32, DType::F32),
    Sizes::new([4, 160, 256, 4, 700], DType::Bf16, DType::F32),
    Sizes::new([4, 99, 64, 1, 7], DType::Bf16, DType::F32),
    Sizes::new([4, 99, 64, 1, 7], DType::F16, DType::F16),
    Sizes::new([4, 160, 256, 4, 700], DType::Bf16, DType::Bf16),
];

#[test]
fn a_busy_gpu_gives_the_same_bits_every_time() {
    if gpu().is_none() {
        return;
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| keep_busy(&done));
        let repeated = std::panic::catch_unwind(|| SIZES.each_ref().map(repeat));
        done.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
        if let Err(failed) = repeated {
            std::panic::resume_unwind(failed);
        }
    });
}

/// Runs matmuls that leave some multiprocessors idle, until `done`; returns their number.
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

fn repeat(sizes: &Sizes) {
    let device = Device::cuda(0, 0, tensor::ops::FAMILIES, &DeviceOptions::default()).unwrap();
    let results = || {
        let mut results = vec![];
        every_operator(&device, sizes, |operator, outputs| {
            results.push((operator, outputs.iter().map(|tensor| bits(tensor)).collect::<Vec<_>>()));
        });
        results
    };
    let first = results();
    for time in 1..=repeats(TIMES) {
        for ((operator, expected), (_, actual)) in first.iter().zip(results()) {
            assert!(*expected == actual, "{operator} in {} differs at repetition {time}", sizes.dtype);
        }
    }

    assert!(first.len() > 20);
}
