use device::{Description, Kind};
use tensor::ops::attention;
use tensor::{DType, Tensor, TensorError};

use crate::reference;
use crate::support::{
    Case, bits, cpu, devices, dot, gpu, is_gradient, meta, normal, operand, read, repeats, tensor, typed,
    wide,
};

/// Batch, time, head width, heads: around the ends of a tile, and odd.
const SIZES: [[usize; 4]; 10] = [
    [1, 1, 1, 1],
    [2, 2, 3, 1],
    [1, 5, 4, 2],
    [3, 7, 1, 3],
    [1, 33, 5, 3],
    [2, 63, 8, 1],
    [1, 64, 8, 2],
    [1, 65, 3, 1],
    [1, 70, 16, 2],
    [1, 131, 4, 1],
];
/// More for a GPU in f32: every form that the kernels are compiled in.
const WIDE_SIZES: [[usize; 4]; 6] =
    [[2, 67, 20, 2], [1, 130, 33, 2], [2, 129, 64, 2], [1, 65, 100, 1], [1, 97, 128, 2], [1, 50, 256, 1]];
/// The same in bf16, but for the head width: times around the ends of tiles of 64, 128 and 192, and many short heads, so
/// that blocks of threads go from head to head.
const TIMES: [[usize; 3]; 16] = [
    [1, 1, 1],
    [1, 5, 2],
    [3, 7, 3],
    [1, 63, 2],
    [2, 64, 1],
    [1, 65, 1],
    [1, 127, 2],
    [2, 128, 2],
    [1, 129, 1],
    [2, 193, 3],
    [1, 320, 3],
    [1, 385, 2],
    [1, 1024, 1],
    [1, 1088, 1],
    [20, 64, 27],
    [40, 130, 7],
];

fn sizes(case: &Case) -> Vec<[usize; 4]> {
    match (case.device.is_cuda_like(), case.dtype) {
        (false, _) => SIZES.to_vec(),
        (true, DType::Bf16) => {
            let of = |width: usize| TIMES.map(|[batch, time, heads]| [batch, time, width, heads]);
            [32, 64, 128].into_iter().flat_map(of).collect()
        }
        (true, _) => SIZES.into_iter().chain(WIDE_SIZES).collect(),
    }
}

/// The gradient of Σ dy · output by qkv, in f64.
fn gradient(
    qkv: &[f64],
    dy: &[f64],
    [batch, time, head_width, heads]: [usize; 4],
    output: &[f64],
    logsumexp: &[f64],
) -> Vec<f64> {
    let (width, scale) = (heads * head_width, 1.0 / (head_width as f64).sqrt());
    let mut dqkv = vec![0.0; qkv.len()];
    for (line, logsumexp) in logsumexp.chunks(time).enumerate() {
        let (b, head) = (line / heads, line % heads);
        assert!(b < batch);
        let at = |t: usize, third: usize| (b * time + t) * 3 * width + third * width + head * head_width;
        let plain = |t: usize| (b * time + t) * width + head * head_width;
        for query in 0..time {
            let (q, dy) = (&qkv[at(query, 0)..][..head_width], &dy[plain(query)..][..head_width]);
            let delta = dot(dy, &output[plain(query)..][..head_width]);
            for key in 0..=query {
                let (k, v) = (&qkv[at(key, 1)..][..head_width], &qkv[at(key, 2)..][..head_width]);
                let weight = (dot(q, k) * scale - logsumexp[query]).exp();
                let slope = weight * (dot(dy, v) - delta) * scale;
                for column in 0..head_width {
                    dqkv[at(query, 0) + column] += slope * k[column];
                    dqkv[at(key, 1) + column] += slope * q[column];
                    dqkv[at(key, 2) + column] += weight * dy[column];
                }
            }
        }
    }
    dqkv
}

#[test]
fn forward_is_causal_softmax_attention() {
    for case in devices() {
        for size @ [batch, time, head_width, heads] in sizes(&case) {
            let (qkv, qkv_wide) = case.operand("qkv", [batch, time, 3 * heads * head_width]);
            let made = attention::forward(&qkv, heads).unwrap();
            let [output, logsumexp] = reference::attention(&qkv_wide, batch, time, heads * head_width, heads);
            case.close(&format!("output {size:?}"), &read(&made.output), &output);
            case.close(&format!("logsumexp {size:?}"), &read(&made.logsumexp), &logsumexp);
        }
    }
}

#[test]
fn backward_is_the_gradient_of_forward() {
    for case in devices() {
        for size @ [batch, time, head_width, heads] in sizes(&case) {
            let width = heads * head_width;
            let (qkv, qkv_wide) = case.operand("qkv", [batch, time, 3 * width]);
            let (dy, dy_wide) = case.operand("dy", [batch, time, width]);
            let made = attention::forward(&qkv, heads).unwrap();
            let dqkv = attention::backward(&dy, &qkv, &made.output, &made.logsumexp, heads).unwrap();
            let [output, logsumexp] = reference::attention(&qkv_wide, batch, time, width, heads);
            let expected = gradient(&qkv_wide, &dy_wide, size, &output, &logsumexp);
            let found = read(&dqkv);
            case.close(&format!("dqkv {size:?}"), &found, &expected);
            // Of few positions the first two thirds are differences of what the output's rounding changes.
            for third in (0..3).filter(|_| time >= 32) {
                let part = |x: &[f64]| -> Vec<f64> {
                    x.chunks(3 * width).flat_map(|row| row[third * width..][..width].to_vec()).collect()
                };
                case.close(&format!("third {third} of dqkv {size:?}"), &part(&found), &part(&expected));
            }
        }
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = cpu();
    for size @ [batch, time, head_width, heads] in SIZES {
        let width = heads * head_width;
        let (qkv, qkv_wide) = operand(&device, "qkv", [batch, time, 3 * width]);
        let (dy, dy_wide) = operand(&device, "dy", [batch, time, width]);
        let made = attention::forward(&qkv, heads).unwrap();
        let dqkv = attention::backward(&dy, &qkv, &made.output, &made.logsumexp, heads).unwrap();
        is_gradient(&format!("dqkv {size:?}"), &read(&dqkv), &qkv_wide, |qkv| {
            dot(&dy_wide, &reference::attention(qkv, batch, time, width, heads)[0])
        });
    }
}

#[test]
fn a_gpu_repeats_both_passes_to_the_bit() {
    let Some(device) = gpu() else { return };
    for (dtype, [batch, time, head_width, heads]) in [
        (DType::F32, [2, 300, 20, 3]),
        (DType::Bf16, [2, 300, 32, 3]),
        (DType::Bf16, [4, 1024, 64, 12]),
        (DType::Bf16, [2, 1000, 128, 5]),
        (DType::Bf16, [30, 60, 128, 9]),
    ] {
        let width = heads * head_width;
        let qkv = typed(&device, dtype, &normal("qkv", batch * time * 3 * width), [batch, time, 3 * width]);
        let dy = typed(&device, dtype, &normal("dy", batch * time * width), [batch, time, width]);
        let both = || {
            let made = attention::forward(&qkv, heads).unwrap();
            let dqkv = attention::backward(&dy, &qkv, &made.output, &made.logsumexp, heads).unwrap();
            [&made.output, &made.logsumexp, &dqkv].map(bits)
        };
        let first = both();
        for _ in 0..repeats(20) {
            assert!(both() == first, "{dtype} {head_width}");
        }
    }
}

#[test]
fn operands_that_begin_between_widest_accesses_give_the_same() {
    let Some(device) = gpu() else { return };
    let (time, heads, width) = (100, 2, 128);
    let values = normal("qkv", time * 3 * width + 2);
    let whole = typed(&device, DType::Bf16, &values, [values.len()]);
    let shifted = whole.view(2, [1, time, 3 * width]).unwrap();
    let plain = typed(&device, DType::Bf16, &values[2..], [1, time, 3 * width]);
    let [a, b] = [shifted, plain].map(|qkv| read(&attention::forward(&qkv, heads).unwrap().output));
    let size = dot(&b, &b).sqrt();
    let error = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    assert!(error <= 1e-2 * size, "{error} of {size}");
}

#[test]
fn a_gpu_refuses_heads_without_a_kernel() {
    let device = meta(&Description { kind: Kind::Cuda, ..Description::host() });
    for (dtype, width, fits) in [
        (DType::Bf16, 32, true),
        (DType::Bf16, 48, false),
        (DType::Bf16, 128, true),
        (DType::Bf16, 256, false),
        (DType::F32, 5, true),
        (DType::F32, 256, true),
        (DType::F32, 257, false),
    ] {
        let request = device::Request::new(device::Category::Input, "qkv");
        let qkv = Tensor::empty(&device, [1, 4, 3 * 2 * width], dtype, request).unwrap();
        match attention::forward(&qkv, 2) {
            Ok(_) => assert!(fits, "{dtype} {width}"),
            Err(TensorError::Shape { expected, .. }) => {
                assert!(!fits && expected.contains(&format!("not {width}")), "{expected}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn scores_far_from_zero_neither_overflow_nor_vanish() {
    let device = cpu();
    let values: Vec<f32> = normal("qkv", 70 * 12).iter().map(|v| 30.0 * v).collect();
    let qkv = tensor(&device, &values, [1, 70, 12]);
    let (dy, dy_wide) = operand(&device, "dy", [1, 70, 4]);
    let made = attention::forward(&qkv, 1).unwrap();
    let [output, _] = reference::attention(&wide(&values), 1, 70, 4, 1);
    // Scores of some thousands carry an absolute error of a few 1e-4, and so do weights.
    let found = read(&made.output);
    let worst = found.iter().zip(&output).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 0.2, "{worst}");
    let dqkv = read(&attention::backward(&dy, &qkv, &made.output, &made.logsumexp, 1).unwrap());
    assert!(dqkv.iter().all(|g| g.is_finite()));
    assert!(dot(&dy_wide, &found).is_finite());
}

#[test]
fn later_positions_do_not_reach_earlier_ones() {
    for case in devices() {
        let head_width = if case.dtype == DType::Bf16 { 64 } else { 2 };
        let (width, time) = (2 * head_width, 300);
        let (x, values) = case.operand("qkv", [1, time, 3 * width]);
        let mut changed: Vec<f32> = values.iter().map(|v| *v as f32).collect();
        changed[250 * 3 * width..].iter_mut().for_each(|v| *v = case.round(-*v + 1.0));
        let changed = case.tensor(&changed, [1, time, 3 * width]);
        let [before, after] = [x, changed].map(|x| read(&attention::forward(&x, 2).unwrap().output));
        assert_eq!(before[..250 * width], after[..250 * width]);
        assert_ne!(before[250 * width..], after[250 * width..]);
    }
}
