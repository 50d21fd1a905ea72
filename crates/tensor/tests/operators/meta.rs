use std::collections::BTreeMap;

use device::{Description, Device, DeviceOptions, Kind};
use tensor::DType;
use tensor::ops::attention::{Heads, Masks, Qkv};

use crate::support::{gpu, meta};
use crate::trial::follow_all;

/// Types of operands and of weight gradients.
const TYPES: [[DType; 2]; 4] = [
    [DType::F32, DType::F32],
    [DType::F16, DType::F16],
    [DType::Bf16, DType::F32],
    [DType::Bf16, DType::Bf16],
];

type Figures = Vec<(&'static str, &'static str, [u64; 4], Option<i64>)>;

/// Runs every operator on a device in `types`; returns the allocator's counters after each result.
fn figures(device: &Device, types: [DType; 2]) -> Figures {
    let mut figures = vec![];
    follow_all(device, types, &mut |operator, part, _| figures.push(now(device, operator, part)));
    figures
}

fn now(
    device: &Device,
    operator: &'static str,
    part: &'static str,
) -> (&'static str, &'static str, [u64; 4], Option<i64>) {
    let now = device.statistics();
    let bytes = [now.allocated(), now.peak_allocated(), now.reserved(), now.peak_reserved()];
    (operator, part, bytes, now.get("allocation.all.allocated"))
}

#[test]
fn meta_allocates_what_the_cpu_does_operator_by_operator() {
    for types in TYPES {
        let cpu = figures(&Device::cpu(0, &DeviceOptions::default()).unwrap(), types);
        assert_eq!(cpu, figures(&meta(&Description::host()), types));
        assert!(cpu.iter().all(|(.., bytes, count)| bytes[0] > 0 && count.is_some_and(|count| count > 0)));
    }
}

#[test]
fn meta_allocates_what_a_gpu_does_operator_by_operator() {
    if gpu().is_none() {
        return;
    }
    for types in TYPES {
        let device = Device::cuda(0, 0, tensor::ops::FAMILIES, &DeviceOptions::default()).unwrap();
        let imitated = meta(device.description());
        assert_eq!(figures(&device, types), figures(&imitated, types));
    }
}

/// The imitated GPUs have different kernels for attention and matmuls.
#[test]
fn every_operator_logs_its_calls_and_allocates_as_without_a_log() {
    for (compute_capability, types) in
        [(8, 0), (9, 0)].into_iter().flat_map(|cc| TYPES.map(|types| (cc, types)))
    {
        let description =
            Description { kind: Kind::Cuda, compute_capability, multiprocessors: 100, ..Description::host() };
        let plain = figures(&meta(&description), types);
        let device = meta(&description);
        device.begin_log();
        let mut logged = 0;
        let mut figures = vec![];
        let mut calls = BTreeMap::new();
        follow_all(&device, types, &mut |operator, part, _| {
            figures.push(now(&device, operator, part));
            *calls.entry(operator).or_insert(0) += device.logged_calls() - logged;
            logged = device.logged_calls();
        });
        let silent: Vec<_> = calls.iter().filter(|(_, calls)| **calls == 0).collect();
        assert!(silent.is_empty(), "{silent:?}");
        assert_eq!(figures, plain);
        assert_eq!(device.end_log().calls.len(), logged);
    }
}

#[test]
fn operators_use_workspaces_on_a_gpu_and_none_on_a_host() {
    let description = Description { kind: Kind::Cuda, ..Description::host() };
    let [host, imitated] = [Description::host(), description].map(|description| {
        let device = meta(&description);
        let before = device.statistics().get("allocation.all.allocated");
        let mut last = 0;
        follow_all(&device, TYPES[0], &mut |_, _, _| {
            last = device.statistics().get("allocation.all.allocated").unwrap_or(0);
        });
        last - before.unwrap_or(0)
    });
    // At least one per call of cross-entropy and mse, of the weights of linear and layer norm and embedding,
    // and of tables.
    assert!(imitated >= host + 100, "{imitated}, {host}");
}

#[test]
fn operators_allocate_only_their_outputs() {
    let [batch, time, width, heads] = [2, 65, 24, 2];
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let count = |device: &Device| device.statistics().get("allocation.all.allocated").unwrap_or(0);
    let operand = crate::support::operand(&device, "qkv", [batch, time, 3 * width]).0;
    let before = count(&device);
    let qkv = Qkv::Packed(operand);
    let heads = Heads::multi(heads, width / heads);
    let result = tensor::ops::attention::forward(&qkv, heads, Masks::default(), false).unwrap();
    assert_eq!(count(&device) - before, 2);
    let dy = crate::support::operand(&device, "dy", [batch, time, width]).0;
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
    let weight = crate::support::operand(&device, "w", [7, width]).0;
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
