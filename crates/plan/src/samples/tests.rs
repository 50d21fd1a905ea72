use device::matmul_table::MatmulKey;
use device::{LoggedCall, Work};

use super::*;
use crate::call_size::CallSizes;

#[test]
fn links_of_a_host_say_nothing_of_a_network() {
    let all_reduce = |hosts, bytes, seconds| [hosts, 4.0, bytes, seconds];
    let measured = |samples: &[[f64; 4]]| {
        Samples::from_measured(&[MeasuredCalls { call: "all-reduce".to_owned(), samples: samples.into() }])
    };
    let size = |hosts| CallSize { kind: of_ranks("all-reduce", hosts), size: [hosts, 4.0, 1e6] };
    let ratio = |samples: &Samples, hosts| samples.ratio(&size(hosts), |[hosts, _, bytes]| hosts * bytes);
    let near = measured(&[all_reduce(1.0, 1e6, 2e6)]);
    assert!((ratio(&near, 1.0).unwrap() - 2.0).abs() < 1e-9 && ratio(&near, 2.0).is_none());
    let both = measured(&[all_reduce(1.0, 1e6, 2e6), all_reduce(2.0, 1e6, 6e6)]);
    for (hosts, expected) in [(1.0, 2.0), (2.0, 3.0), (8.0, 3.0)] {
        let found = ratio(&both, hosts).unwrap();
        assert!((found - expected).abs() < 1e-9, "{hosts} hosts: {found}");
    }
}

#[test]
fn a_configurations_own_calls_take_their_measured_times() {
    let calls =
        |samples: &[[f64; 4]]| MeasuredCalls { call: "add.add_f32 0".to_owned(), samples: samples.into() };
    let described = [calls(&[[8.0, 8.0, 8.0, 2.0], [16.0, 16.0, 16.0, 4.0]])];
    let samples = Samples::from_measured(&described).with_probed(&[calls(&[[8.0, 8.0, 8.0, 3.0]])]);
    let size = |size| CallSize { kind: "add.add_f32 0".to_owned(), size: [size; 3] };
    let ratio = |samples: &Samples, own| samples.ratio(&size(own), |[blocks, ..]| blocks).unwrap();
    assert_eq!(ratio(&samples, 8.0), 3.0 / 8.0);
    // Calls of other sizes are estimated from the description.
    let close = |one: f64, other: f64| (one - other).abs() < 1e-9;
    assert!(close(ratio(&samples, 12.0), 0.25) && close(ratio(&samples, 16.0), 0.25));
    // A kind that only the configuration has is measured at its sizes.
    let alone = Samples::from_measured(&[]).with_probed(&[calls(&[[8.0, 8.0, 8.0, 3.0]])]);
    assert!(!alone.is_empty() && alone.has(&size(8.0)) && !alone.has(&size(9.0)));
    assert_eq!(alone.ratio(&size(9.0), |_| 1.0), None);
}

#[test]
fn rows_of_matmuls_are_named_by_their_alignment() {
    const KIND: &str = "bf16,bf16,bf16 set plain 256";
    for (sizes, layout, strides, expected) in [
        ("3x16x8", "nt", "", ""),
        ("8x50257x768", "nt", "", " rows of 1"),
        ("8x768x50258", "nn", "", " rows of 2"),
        ("50260x768x5", "tn", "", " rows of 4"),
        ("512x768x5", "tn", "", ""),
        ("8x50257x768", "nt", " strides=768,768,50264", ""),
        ("8x768x50257", "nn", " strides=50260,768,768", " rows of 4"),
    ] {
        let key: MatmulKey = format!("{sizes} {layout} {KIND}{strides}").parse().unwrap();
        let call = LoggedCall::Matmul { key, work: Work::default() };
        let size = CallSizes::new(8, 132, false).size(&call).unwrap();
        assert_eq!(size.kind, format!("matmul {layout} {KIND}{expected}"), "{key}");
    }
}

/// Returns one measured call of size 8, 8, 8.
fn calls(call: &str, seconds: f64) -> MeasuredCalls {
    MeasuredCalls { call: call.to_owned(), samples: vec![[8.0, 8.0, 8.0, seconds]] }
}

#[test]
fn ratios_come_from_related_kinds_where_the_kind_has_none() {
    let samples = Samples::from_measured(&[
        calls("matmul nt bf16,bf16,bf16 set plain 256", 2.0),
        calls("matmul nt bf16,bf16,bf16 set plain 256 rows of 1", 9.0),
        calls("attention.forward_bf16 3", 5.0),
    ]);
    for (kind, expected) in [
        ("matmul nt bf16,bf16,bf16 set plain 256", Some(2.0)),
        ("matmul nt f16,f16,f16 add bias 256", Some(2.0)),
        ("matmul nt f16,f16,f16 add plain 256 rows of 1", Some(9.0)),
        ("matmul nn bf16,bf16,bf16 set plain 256", None),
        ("attention.forward_bf16+dropout 3", Some(7.25)),
        ("attention.forward_bf16+dropout 4", Some(7.25)),
        ("attention.forward_f16 4", Some(5.0)),
        ("attention.backward_bf16 3", None),
    ] {
        let size = CallSize { kind: kind.to_owned(), size: [8.0; 3] };
        let ratio = samples.ratio(&size, |_| 1.0);
        assert_eq!(ratio.map(|ratio| (1e6 * ratio).round() / 1e6), expected, "{kind}");
    }
}

#[test]
fn gradients_of_inputs_are_alike_for_images_of_one_size() {
    let samples = Samples::from_measured(&[
        calls("convolution bf16 backward input 3x3 1 of 7x7", 2.0),
        calls("convolution bf16 backward input 3x3 1 of 64x64", 4.0),
        calls("convolution f16 forward 3x3 1", 3.0),
        calls("convolution f32 forward 3x3 1", 9.0),
    ]);
    let ratio = |kind: &str| {
        let size = CallSize { kind: format!("convolution {kind}"), size: [8.0; 3] };
        samples.ratio(&size, |_| 1.0)
    };
    let near = |kind, low: f64, high: f64| {
        let found = ratio(kind).unwrap();
        assert!(low < found && found < high, "{kind}: {found}");
    };
    near("bf16 backward input 3x3 1 of 7x7", 2.0, 2.4);
    near("f16 backward input 3x3 1 of 8x7", 2.0, 2.8);
    near("bf16 backward input 3x3 1 of 56x56", 2.8, 4.0);
    near("bf16 forward 3x3 1", 2.9999, 3.0001);
    near("f32 forward 3x3 1", 8.9999, 9.0001);
    // Descriptions without images.
    near("bf16 backward input 3x3 1", 2.7, 2.9);
    assert_eq!(ratio("f32 tf32 forward 3x3 1"), None);
}
