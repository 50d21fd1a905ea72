//! Tests of descriptions that are shipped, written and refused.

use super::*;
use crate::overhead::DeviceRanks;
use crate::target::PlanTarget;

#[test]
fn descriptions_are_read_back() {
    let shipped = PlanDevice::shipped().unwrap();
    assert_eq!(PlanDevice::parse(&shipped.to_toml().unwrap(), "again").unwrap(), shipped);
    let alone = shipped.description(DeviceRanks::ALONE).taken_bytes;
    assert_eq!(
        shipped.description(DeviceRanks::CONNECTED).taken_bytes,
        alone + shipped.overhead.communicators
    );
    // Four ranks on one device have one context.
    let four = DeviceRanks { count: 4, connected: false };
    let each = shipped.overhead.modules + shipped.overhead.warm_up;
    assert_eq!(shipped.description(four).taken_bytes, alone + 3 * each);
    let calls = |seconds| MeasuredCalls { call: "copy".to_owned(), samples: vec![[1.0, 8.0, 1.0, seconds]] };
    let probed = shipped.with_probed(vec![calls(1.0)]).with_probed(vec![calls(2.0)]);
    assert_eq!(probed.probed, [calls(2.0)]);
    assert_eq!(PlanDevice::parse(&probed.to_toml().unwrap(), "probed").unwrap(), probed);
    let host = PlanDevice::host();
    assert_eq!(PlanDevice::parse(&host.to_toml().unwrap(), "host").unwrap(), host);
    assert_eq!(host.description(DeviceRanks::CONNECTED), Description::host());
    assert!(
        host.overhead.parts(DeviceRanks::CONNECTED).is_empty()
            && !host.rates_or_shipped().unwrap().1.is_empty()
    );
    let shipped = PlanDevice::shipped().unwrap();
    let other = Description { model: "another".to_owned(), ..shipped.description(DeviceRanks::ALONE) };
    let other = PlanDevice::gpu(&other).unwrap();
    assert!(
        other.overhead.parts(DeviceRanks::CONNECTED).iter().all(|part| !part.measured)
            && other.rates.is_none()
    );
    let model = "NVIDIA H100 80GB HBM3";
    let known = Description { model: model.to_owned(), ..shipped.description(DeviceRanks::ALONE) };
    assert!(PlanDevice::gpu(&known).unwrap().rates.is_some_and(|rates| !rates.assumed.is_empty()));
}

#[test]
fn a_measured_network_replaces_the_assumed_one() {
    let calls =
        |call: &str, samples: &[[f64; 4]]| MeasuredCalls { call: call.to_owned(), samples: samples.into() };
    let near = calls("all-reduce", &[[1.0, 4.0, 1e9, 1e-2]]);
    let older = calls("all-reduce", &[[1.0, 4.0, 1e9, 1e-2], [4.0, 4.0, 1e9, 1.0]]);
    let device = PlanDevice { times: vec![older], ..PlanDevice::shipped().unwrap() };
    // 16 GPUs on two hosts: 8 of each host send half of the operand, twice.
    let far = calls("all-reduce", &[[2.0, 8.0, 1e9, 0.025], [2.0, 8.0, 1e6, 1e-4], [2.0, 1.0, 1e9, 0.1]]);
    let message = calls("send", &[[2.0, 8.0, 1e6, 1e-4], [2.0, 8.0, 8192.0, 7e-6]]);
    let measured = device.with_network(vec![far.clone(), message.clone()]);
    let network = measured.network.unwrap();
    assert!((network.bytes - 5e9).abs() < 1.0 && network.seconds == Some(7e-6), "{network:?}");
    let all = calls("all-reduce", &[near.samples, far.samples].concat());
    assert_eq!(measured.times, [all, message]);
}

#[test]
fn descriptions_from_data_sheets_are_marked_as_assumed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../launch/devices");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let device = PlanDevice::load(&path).unwrap();
        names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
        let (rates, assumed) = device.rates_or_shipped().unwrap();
        let all = [rates.assumed.len(), assumed.len(), device.overhead.assumed.len()];
        // Whether the device was measured; how many of its rates and overhead values were not.
        let (measured, expected) = match names.last().map(String::as_str) {
            Some("h200") => (true, [0, 0, 0]),
            // Connections between GPUs were not measured.
            Some("h100-80gb") => (true, [1, 1, 1]),
            _ => (false, [4, 4, 4]),
        };
        assert_eq!((device.assumed.is_empty(), all), (measured, expected), "{path:?}");
        let parts = device.overhead.parts(DeviceRanks::CONNECTED);
        assert_eq!(
            parts.iter().filter(|part| !part.measured).count(),
            device.overhead.assumed.len(),
            "{path:?}"
        );
    }
    names.sort();
    assert_eq!(names, PlanDevice::names().collect::<Vec<_>>());
}

#[test]
fn a_description_in_the_repository_is_a_device_by_its_name() {
    for name in PlanDevice::names() {
        let named = PlanTarget::from_argument(name).unwrap().device(None, DeviceRanks::ALONE).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../launch/devices/{name}.toml"));
        assert_eq!(named, PlanDevice::load(&path).unwrap());
    }
    for (text, name) in [
        ("h100", "h100-80gb"),
        ("H100 80GB", "h100-80gb"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("Tesla T4", "t4"),
        ("L4", "l4"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
    ] {
        assert_eq!(PlanTarget::from_argument(text).unwrap(), PlanTarget::Named(name), "{text}");
    }
    for (text, expected) in [
        ("a100", "several devices are called so: write one of a100-40gb, a100-80gb"),
        (
            "mi300x",
            "unknown device: write auto, cpu, cuda or meta, or for a GPU that is not here a100-40gb, a100-80gb, \
             a10g, b200, h100-80gb, h20, h200, l4, l40s, rtx-3090, rtx-4090, rtx-5090, rtx-pro-6000, t4, or the \
             file of a description",
        ),
        ("gb", "unknown device: write auto"),
        ("h201", "unknown device: write auto"),
        ("L40", "unknown device: write auto"),
        ("RTX 3090 Ti", "unknown device: write auto"),
        ("RTX 4090 Laptop GPU", "unknown device: write auto"),
        ("H100 PCIe 80GB", "unknown device: write auto"),
    ] {
        let refused = PlanTarget::from_argument(text).unwrap_err();
        assert_eq!(refused.exit_status(), 2);
        assert!(refused.to_string().starts_with(&format!("--device {text}: {expected}")), "{refused}");
    }
}

#[test]
fn invalid_descriptions_are_refused_with_their_line() {
    let units_of_attention =
        "[[times]]\ncall = \"attention.forward_bf16 0\"\nsamples = [[410, 1, 1, 1]]\n\n[[times]]";
    let table = [
        ("multiprocessors = 132", "processors = 132", ":10: unknown field"),
        ("total_bytes = 150109880320", "total_bytes = \"all\"", ":7: invalid type"),
        ("total_bytes = 150109880320", "total_bytes = 0", "above 0"),
        ("granularity = 2097152", "granularity = 3000", "must divide 2097152"),
        ("context = 554500096", "context = 150109880320", "leaves nothing"),
        ("context = 554500096", "context = 9223372036854775807", "leaves nothing"),
        ("flops_f32 = ", "flops_f32 = 0.0 # ", "above 0"),
        ("bytes = 50e9", "bytes = 0.0", "[network] must all be above 0"),
        ("limit_watts = 700.0", "limit_watts = -1.0", "[power] must all be above 0"),
        ("[[times]]", units_of_attention, "describe the device again"),
        ("[[times]]", "[[probed]]\ncall = \"copy\"\nsamples = [[1, 1, 1, 0]]\n\n[[times]]", "seconds of"),
    ];
    for (from, to, expected) in table {
        let text = SHIPPED.replacen(from, to, 1);
        assert_ne!(text, SHIPPED, "{from}");
        let error = PlanDevice::parse(&text, "h.toml").unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("h.toml:") && message.contains(expected), "{message}");
        assert_eq!((error.exit_status(), message.lines().count()), (2, 1));
    }
}
