use tensor::Tensor;
use tensor::ops::attention;

use crate::reference;
use crate::support::{close, cpu, dot, is_gradient, operand, read, tensor, wide};

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

fn qkv(device: &device::Device, [batch, time, head_width, heads]: [usize; 4]) -> (Tensor, Vec<f64>) {
    operand(device, "qkv", [batch, time, 3 * heads * head_width])
}

#[test]
fn forward_is_causal_softmax_attention() {
    let device = cpu();
    for size @ [batch, time, head_width, heads] in SIZES {
        let (qkv, qkv_wide) = qkv(&device, size);
        let made = attention::forward(&qkv, heads).unwrap();
        let [output, logsumexp] = reference::attention(&qkv_wide, batch, time, heads * head_width, heads);
        close(&format!("output {size:?}"), &read(&made.output), &output);
        close(&format!("logsumexp {size:?}"), &read(&made.logsumexp), &logsumexp);
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = cpu();
    for size @ [batch, time, head_width, heads] in SIZES {
        let width = heads * head_width;
        let (qkv, qkv_wide) = qkv(&device, size);
        let (dy, dy_wide) = operand(&device, "dy", [batch, time, width]);
        let made = attention::forward(&qkv, heads).unwrap();
        let dqkv = attention::backward(&dy, &qkv, &made.output, &made.logsumexp, heads).unwrap();
        is_gradient(&format!("dqkv {size:?}"), &read(&dqkv), &qkv_wide, |qkv| {
            dot(&dy_wide, &reference::attention(qkv, batch, time, width, heads)[0])
        });
    }
}

#[test]
fn scores_far_from_zero_neither_overflow_nor_vanish() {
    let device = cpu();
    let values: Vec<f32> = crate::support::normal("qkv", 70 * 12).iter().map(|v| 30.0 * v).collect();
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
    let device = cpu();
    let (x, values) = operand(&device, "qkv", [1, 100, 12]);
    let mut changed: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    changed[80 * 12..].iter_mut().for_each(|v| *v = -*v + 1.0);
    let changed = tensor(&device, &changed, [1, 100, 12]);
    let (before, after) = (attention::forward(&x, 2).unwrap(), attention::forward(&changed, 2).unwrap());
    let (before, after) = (read(&before.output), read(&after.output));
    assert_eq!(before[..80 * 4], after[..80 * 4]);
    assert_ne!(before[80 * 4..], after[80 * 4..]);
}
