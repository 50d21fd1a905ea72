use std::collections::BTreeMap;

use device::{Description, Device, DeviceOptions, Kind};
use tensor::DType;
use tensor::ops::attention::{Heads, Masks, Qkv};

use crate::scenario::{Sizes, every_operator};
use crate::support::{gpu, meta};

const F32_SIZES: [Sizes; 2] = [
    Sizes::new([2, 17, 12, 3, 31], DType::F32, DType::F32),
    Sizes::new([3, 70, 66, 2, 1000], DType::F32, DType::F32),
];
/// Head widths have kernels in half precision.
const HALF_SIZES: [Sizes; 4] = [
    Sizes::new([2, 17, 32, 1, 31], DType::F16, DType::F16),
    Sizes::new([2, 17, 32, 1, 31], DType::Bf16, DType::F32),
    Sizes::new([3, 70, 128, 2, 1000], DType::Bf16, DType::F32),
    Sizes::new([3, 70, 128, 2, 1000], DType::Bf16, DType::Bf16),
];

type Figures = Vec<(&'static str, [u64; 4], Option<i64>)>;

/// The allocator's counters after every operator.
fn figures(device: &Device, sizes: &[Sizes]) -> Figures {
    let mut figures = vec![];
    for sizes in sizes {
        every_operator(device, sizes, |operator, _| {
            let now = device.statistics();
            let bytes = [now.allocated(), now.peak_allocated(), now.reserved(), now.peak_reserved()];
            figures.push((operator, bytes, now.get("allocation.all.allocated")));
        });
    }
    figures
}

#[test]
fn meta_allocates_what_the_cpu_does_operator_by_operator() {
    for sizes in [&F32_SIZES[..], &HALF_SIZES] {
        let cpu = figures(&Device::cpu(0, &DeviceOptions::default()).unwrap(), sizes);
        assert_eq!(cpu, figures(&meta(&Description::host()), sizes));
        assert!(cpu.iter().all(|(_, bytes, count)| bytes[0] > 0 && count.is_some_and(|count| count > 0)));
    }
}

#[test]
fn meta_allocates_what_a_gpu_does_operator_by_operator() {
    if gpu().is_none() {
        return;
    }
    for sizes in [&F32_SIZES[..], &HALF_SIZES] {
        let device = Device::cuda(0, 0, tensor::ops::FAMILIES, &DeviceOptions::default()).unwrap();
        let imitated = meta(device.description());
        assert_eq!(figures(&device, sizes), figures(&imitated, sizes));
    }
}

/// On GPUs with other kernels for attention and matmuls each.
#[test]
fn every_operator_logs_its_calls_and_allocates_as_without_a_log() {
    for compute_capability in [(8, 0), (9, 0)] {
        let description =
            Description { kind: Kind::Cuda, compute_capability, multiprocessors: 100, ..Description::host() };
        for sizes in [&F32_SIZES[..], &HALF_SIZES] {
            let plain = figures(&meta(&description), sizes);
            let device = meta(&description);
            device.begin_log();
            let (mut logged, mut figures, mut calls) = (0, vec![], BTreeMap::new());
            for sizes in sizes {
                every_operator(&device, sizes, |operator, _| {
                    let now = device.statistics();
                    let bytes = [now.allocated(), now.peak_allocated(), now.reserved(), now.peak_reserved()];
                    figures.push((operator, bytes, now.get("allocation.all.allocated")));
                    *calls.entry(operator).or_insert(0) += device.logged_calls() - logged;
                    logged = device.logged_calls();
                });
            }
            // Some calls of an operator may be views.
            let silent: Vec<_> = calls.iter().filter(|(_, calls)| **calls == 0).collect();
            assert!(silent.is_empty(), "{silent:?}");
            assert_eq!(figures, plain);
            assert_eq!(device.end_log().calls.len(), logged);
        }
    }
}

#[test]
fn operators_use_workspaces_on_a_gpu_and_none_on_a_host() {
    let description = Description { kind: Kind::Cuda, ..Description::host() };
    let [host, imitated] = [Description::host(), description].map(|description| {
        let device = meta(&description);
        let before = device.statistics().get("allocation.all.allocated");
        let mut last = 0;
        every_operator(&device, &F32_SIZES[1], |_, _| {
            last = device.statistics().get("allocation.all.allocated").unwrap_or(0);
        });
        last - before.unwrap_or(0)
    });
    // One per call of cross-entropy (3), mse, the weights of linear and layer norm and embedding (2 each),
    // and of the two tables; attention adds its own.
    assert!(imitated >= host + 3 + 1 + 6 + 2, "{imitated}, {host}");
}

#[test]
fn operators_allocate_only_their_outputs() {
    let sizes = Sizes::new([2, 65, 24, 2, 100], DType::F32, DType::F32);
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let count = |device: &Device| device.statistics().get("allocation.all.allocated").unwrap_or(0);
    let operand = crate::support::operand(&device, "qkv", [sizes.batch, sizes.time, 3 * sizes.width]).0;
    let before = count(&device);
    let (qkv, heads) = (Qkv::Packed(operand), Heads::multi(sizes.heads, sizes.width / sizes.heads));
    let result = tensor::ops::attention::forward(&qkv, heads, Masks::default(), false).unwrap();
    assert_eq!(count(&device) - before, 2);
    let dy = crate::support::operand(&device, "dy", [sizes.batch, sizes.time, sizes.width]).0;
    let before = count(&device);
    tensor::ops::attention::backward(
        &dy,
        &qkv,
        &result.output,
        &result.logsumexp,
        heads,
        Masks::default(),
        false,
    )
    .unwrap();
    assert_eq!(count(&device) - before, 1);
    let weight = crate::support::operand(&device, "w", [7, sizes.width]).0;
    for (activation, allocations) in [
        (tensor::ops::Activation::None, 1),
        (tensor::ops::Activation::Relu, 1),
        (tensor::ops::Activation::Gelu, 2),
    ] {
        let before = count(&device);
        tensor::ops::linear::forward(&dy, &weight, None, activation).unwrap();
        assert_eq!(count(&device) - before, allocations, "{activation:?}");
    }
}
