mod layouts;
mod sizes;

use device::{Description, Kind};
use rayon::prelude::*;
use tensor::ops::attention::{self, Heads, Masks, Qkv};
use tensor::{Backend, DType, Tensor, TensorError};

use crate::reference::{self, at};
use crate::support::{
    Case, bits, cpu, devices, dot, gpu, meta, normal, operand, read, repeats, tensor, typed, wide,
};
use crate::trial::Trial;
use sizes::{Size, sizes};

/// Number of packed elements up to which a call runs on every device, Meta included. Larger ones take too
/// long.
const FOLLOWED: usize = 1 << 20;

/// Output, log-sum-exp, and gradients in the layout of the operands.
type Results = (Tensor, Tensor, Qkv<Tensor>);

/// Runs the forward and the backward pass.
fn both(dy: &Tensor, qkv: &Qkv<Tensor>, heads: Heads) -> Results {
    let result = attention::forward(qkv, heads, Masks::default(), false).unwrap();
    let gradients =
        attention::backward(dy, qkv, &result.output, &result.logsumexp, heads, Masks::default(), false)
            .unwrap();
    (result.output, result.logsumexp, gradients)
}

fn packed(gradients: &Qkv<Tensor>) -> &Tensor {
    match gradients {
        Qkv::Packed(gradient) => gradient,
        Qkv::Separate(_) | Qkv::Piece { .. } => unreachable!("packed operands have packed gradients"),
    }
}

/// Returns columns `first..first + count` of rows with `columns` columns.
fn cut<T: Copy>(values: &[T], columns: usize, first: usize, count: usize) -> Vec<T> {
    values.chunks(columns).flat_map(|row| row[first..first + count].to_vec()).collect()
}

/// Splits packed rows into queries, keys and values.
fn split<T: Copy>(values: &[T], size: &Size) -> [Vec<T>; 3] {
    let all = size.heads.packed_columns();
    let [query, key_value, _] = size.columns();
    [(0, query), (query, key_value), (query + key_value, key_value)]
        .map(|(first, count)| cut(values, all, first, count))
}

/// Computes the gradient of Σ dy · output with respect to packed queries, keys and values, in f64.
fn gradient(size: &Size, qkv: &[f64], dy: &[f64], output: &[f64], logsumexp: &[f64]) -> Vec<f64> {
    let Size { time, heads, .. } = *size;
    let Heads { query: query_heads, width, .. } = heads;
    let scale = 1.0 / (width as f64).sqrt();
    // Gradients of one query head's queries, keys and values, [time, width] each.
    let of_line = |(line, logsumexp): (usize, &[f64])| {
        let b = line / query_heads;
        let head = line % query_heads;
        let row = |t: usize, part: usize| &qkv[at(heads, b * time + t, part, head)..][..width];
        let plain = |t: usize| ((b * time + t) * query_heads + head) * width;
        let mut parts = [(); 3].map(|()| vec![0.0; time * width]);
        for query in 0..time {
            let q = row(query, 0);
            let dy = &dy[plain(query)..][..width];
            let delta = dot(dy, &output[plain(query)..][..width]);
            for key in 0..=query {
                let k = row(key, 1);
                let v = row(key, 2);
                let weight = (dot(q, k) * scale - logsumexp[query]).exp();
                let slope = weight * (dot(dy, v) - delta) * scale;
                for column in 0..width {
                    parts[0][query * width + column] += slope * k[column];
                    parts[1][key * width + column] += slope * q[column];
                    parts[2][key * width + column] += weight * dy[column];
                }
            }
        }
        parts
    };
    let lines: Vec<_> = logsumexp.par_chunks(time).enumerate().map(of_line).collect();
    let mut dqkv = vec![0.0; qkv.len()];
    for (line, parts) in lines.iter().enumerate() {
        let b = line / query_heads;
        let head = line % query_heads;
        for (part, values) in parts.iter().enumerate() {
            for (t, row) in values.chunks(width).enumerate() {
                let target = &mut dqkv[at(heads, b * time + t, part, head)..][..width];
                target.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
    }
    dqkv
}

/// Tests causal softmax attention in every layout of operands.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for size in sizes(trial) {
        let elements: usize = size.qkv_shape().iter().product();
        if !trial.compares() && elements > FOLLOWED {
            continue;
        }
        trial.label(format!("{size:?}"));
        let values = trial.normal("qkv", elements);
        let qkv = Qkv::Packed(trial.tensor(&values, size.qkv_shape()));
        let qkv_wide = wide(&values);
        let (dy, dy_wide) = trial.operand("dy", size.output_shape());
        let results = both(&dy, &qkv, size.heads);
        let output = &results.0;
        let logsumexp = &results.1;
        let gradients = packed(&results.2);
        let (mut expected, mut dqkv) = <([Vec<f64>; 2], Vec<f64>)>::default();
        if trial.compares() {
            expected = size.reference(&qkv_wide);
            dqkv = gradient(&size, &qkv_wide, &dy_wide, &expected[0], &expected[1]);
        }
        trial.output("output", output, || expected[0].clone());
        trial.output("logsumexp", logsumexp, || expected[1].clone());
        trial.output("dqkv", gradients, || dqkv.clone());
        layouts::separate(trial, &size, &values, &dy, &results);
        if !trial.compares() {
            continue;
        }
        // With few positions, gradients of queries and keys are differences that depend on the output's
        // rounding.
        if size.time >= 32 {
            let parts = split(&read(gradients), &size).into_iter().zip(split(&dqkv, &size));
            for (name, (actual, expected)) in ["dq", "dk", "dv"].into_iter().zip(parts) {
                trial.close(&trial.what(name), &actual, &expected);
            }
        }
        if size.heads.group() > 1 {
            layouts::shared(trial, &size, &values, &dy, &results);
        }
        if (trial.device.backend(), trial.dtype) == (Backend::Cpu, DType::F32) {
            trial.gradient("dqkv by differences", gradients, (&qkv_wide, 0.0), |qkv| {
                dot(&dy_wide, &size.reference(qkv)[0])
            });
        }
    }
}

#[test]
fn a_gpu_repeats_both_passes_to_the_bit() {
    let Some(device) = gpu() else { return };
    for (dtype, size) in [
        (DType::F32, [2, 300, 20, 3, 3]),
        (DType::F32, [2, 300, 20, 6, 2]),
        (DType::Bf16, [2, 300, 32, 3, 3]),
        (DType::Bf16, [2, 300, 32, 4, 1]),
        (DType::Bf16, [4, 1024, 64, 12, 12]),
        (DType::Bf16, [4, 1024, 64, 12, 4]),
        (DType::Bf16, [2, 1000, 128, 5, 5]),
        (DType::Bf16, [2, 1000, 128, 8, 2]),
        (DType::Bf16, [30, 60, 128, 9, 9]),
        (DType::F16, [2, 300, 40, 4, 2]),
        (DType::Bf16, [2, 1000, 80, 8, 2]),
        (DType::Bf16, [2, 1000, 256, 4, 2]),
    ] {
        let size = Size::new(size);
        let operand = |name: &str, shape: [usize; 3]| {
            typed(&device, dtype, &normal(name, shape.iter().product()), shape)
        };
        let qkv = Qkv::Packed(operand("qkv", size.qkv_shape()));
        let dy = operand("dy", size.output_shape());
        let run = || {
            let (output, logsumexp, gradients) = both(&dy, &qkv, size.heads);
            [&output, &logsumexp, packed(&gradients)].map(bits)
        };
        let first = run();
        for _ in 0..repeats(20) {
            assert!(run() == first, "{dtype} {size:?}");
        }
    }
}

#[test]
fn a_gpu_refuses_head_widths_without_a_kernel() {
    let device = meta(&Description { kind: Kind::Cuda, ..Description::host() });
    for (dtype, width, fits) in [
        (DType::Bf16, 32, true),
        (DType::Bf16, 36, false),
        (DType::Bf16, 128, true),
        (DType::F16, 200, true),
        (DType::Bf16, 264, false),
        (DType::F32, 5, true),
        (DType::F32, 256, true),
        (DType::F32, 257, false),
    ] {
        let heads = Heads::grouped(2, 1, width);
        let empty = |columns| {
            let request = device::Request::new(device::Category::Input, "qkv");
            Tensor::empty(&device, [1, 4, columns], dtype, request).unwrap()
        };
        let whole = Qkv::Packed(empty(4 * width));
        let apart = Qkv::Separate([empty(2 * width), empty(width), empty(width)]);
        for qkv in [whole, apart] {
            match attention::forward(&qkv, heads, Masks::default(), false) {
                Ok(_) => assert!(fits, "{dtype} {width}"),
                Err(TensorError::HeadWidth { operator, dtype: refused_type, width: refused, .. }) => {
                    assert_eq!((operator, refused_type, refused), ("attention.forward", dtype, width));
                    assert!(!fits, "{dtype} {width}");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn scores_far_from_zero_neither_overflow_nor_vanish() {
    let device = cpu();
    let heads = Heads::multi(1, 4);
    let values: Vec<f32> = normal("qkv", 70 * 12).iter().map(|v| 30.0 * v).collect();
    let (dy, dy_wide) = operand(&device, "dy", [1, 70, 4]);
    let (output, _, gradients) = both(&dy, &Qkv::Packed(tensor(&device, &values, [1, 70, 12])), heads);
    let [expected, _] = reference::attention(&wide(&values), 1, 70, heads);
    // Scores of some thousands carry an absolute error of a few 1e-4, and so do the weights.
    let actual = read(&output);
    let worst = actual.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 0.2, "{worst}");
    assert!(read(packed(&gradients)).iter().all(|g| g.is_finite()));
    assert!(dot(&dy_wide, &actual).is_finite());
}

#[test]
fn later_positions_do_not_affect_earlier_ones() {
    for case in devices() {
        let width = if case.dtype != DType::F32 { 64 } else { 2 };
        for size in [[1, 300, width, 2, 2], [1, 300, width, 2, 1]].map(Size::new) {
            let columns = size.heads.packed_columns();
            let out = size.heads.query_columns();
            let (x, values) = case.operand("qkv", size.qkv_shape());
            let mut changed: Vec<f32> = values.iter().map(|v| *v as f32).collect();
            changed[250 * columns..].iter_mut().for_each(|v| *v = case.round(-*v + 1.0));
            let changed = case.tensor(&changed, size.qkv_shape());
            let [before, after] = [x, changed].map(|x| {
                read(
                    &attention::forward(&Qkv::Packed(x), size.heads, Masks::default(), false).unwrap().output,
                )
            });
            assert_eq!(before[..250 * out], after[..250 * out]);
            assert_ne!(before[250 * out..], after[250 * out..]);
        }
    }
}
