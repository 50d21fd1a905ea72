//! Layers and losses whose rows are padded: padding never enters a result.

use device::Backend;
use tensor::ops::cross_entropy::{self, IGNORED, Mean, Scores};
use tensor::ops::linear_cross_entropy::Settings;
use tensor::ops::linear_cross_entropy::divided::{ClassRun, gradient, merge, statistics};
use tensor::ops::{Activation, linear, soft_cross_entropy};
use tensor::{DType, Tensor};

use crate::support::{Case, devices, read, tensor};

/// Returns a matrix with and without padding. The padding is NaN.
fn both(case: &Case, name: &str, [rows, columns]: [usize; 2]) -> [Tensor; 2] {
    let (dense, wide) = case.operand(name, [rows, columns]);
    let stride = columns.next_multiple_of(8);
    let mut values = vec![f32::NAN; rows * stride];
    for (padded, row) in values.chunks_mut(stride).zip(wide.chunks(columns)) {
        padded.iter_mut().zip(row).for_each(|(to, from)| *to = *from as f32);
    }
    [case.tensor(&values, [rows, stride]), dense]
}

/// Returns the first `columns` elements of each row.
fn without_padding(padded: &Tensor, columns: usize) -> Vec<f64> {
    let stride = columns.next_multiple_of(8);
    assert_eq!(padded.shape().columns(), stride);
    read(padded).chunks(stride).flat_map(|row| row[..columns].to_vec()).collect()
}

/// Compares results for equality on the CPU. On a GPU, aligned rows are added in another order.
fn same(case: &Case, what: &str, actual: &[f64], expected: &[f64]) {
    match case.device.backend() {
        Backend::Cpu => assert_eq!(actual, expected, "{what}, {}", case.name()),
        _ => case.close(what, actual, expected),
    }
}

#[test]
fn layers_with_padded_rows_have_the_results_of_others() {
    for case in devices() {
        for [rows, inputs, outputs] in [[1, 1, 2], [7, 33, 5], [70, 65, 131], [33, 600, 1001], [5, 24, 64]] {
            let what = |part: &str| format!("{part} of {rows}x{inputs}x{outputs}");
            let (x, _) = case.operand("x", [rows, inputs]);
            let (weight, _) = case.operand("weight", [outputs, inputs]);
            let dense = linear::forward(&x, &weight, None, Activation::None).unwrap().output;
            let padded = linear::forward_padded(&x, &weight).unwrap();
            same(&case, &what("output"), &without_padding(&padded, outputs), &read(&dense));
            let dy = both(&case, "dy", [rows, outputs]);
            let [padded, dense] = dy.each_ref().map(|dy| read(&linear::backward_input(dy, &weight).unwrap()));
            same(&case, &what("dx"), &padded, &dense);
            let partial = |dy| read(&linear::partial_backward_input(dy, &weight).unwrap());
            let [padded, dense] = dy.each_ref().map(partial);
            same(&case, &what("partial dx"), &padded, &dense);
            for accumulate in [false, true] {
                let [padded, dense] = dy.each_ref().map(|dy| {
                    let target = case.target("dweight", [outputs, inputs], accumulate);
                    linear::backward_weight(dy, &x, &target, None).unwrap();
                    read(&target.tensor)
                });
                same(&case, &what("dweight"), &padded, &dense);
            }
        }
        let (weight, _) = case.operand("weight", [5, 4]);
        let (dy, _) = case.operand("dy", [3, 16]);
        let refused = linear::backward_input(&dy, &weight).unwrap_err().to_string();
        assert!(refused.contains("expected [3, 5]"), "{refused}");
    }
}

#[test]
fn losses_of_padded_rows_are_those_of_others() {
    for case in devices() {
        for [rows, classes] in [[1, 3], [7, 5], [70, 131], [3, 50_257], [3, 60_001]] {
            let what = |part: &str| format!("{part} of {rows}x{classes}");
            let mut ids = case.indices("targets", rows, classes);
            ids.iter_mut().skip(1).step_by(3).for_each(|id| *id = IGNORED);
            let targets = tensor(&case.device, &ids, [rows]);
            let mean = Mean::of_rows(0.5);
            for smoothing in [None, Some(0.1)] {
                let run = |tensor: Tensor| {
                    let scores = Scores { tensor, classes };
                    match smoothing {
                        Some(smoothing) => {
                            soft_cross_entropy::forward(scores, &targets, smoothing, mean, true)
                        }
                        None => cross_entropy::forward_mean(scores, &targets, mean, true, None),
                    }
                    .unwrap()
                };
                let [padded, dense] = both(&case, "scores", [rows, classes]).map(run);
                same(&case, &what("loss"), &read(&padded.loss), &read(&dense.loss));
                let padded = without_padding(&padded.gradient.unwrap(), classes);
                same(&case, &what("gradient"), &padded, &read(&dense.gradient.unwrap()));
            }
            let run = ClassRun { first: 0, classes, vocabulary: classes };
            let settings = Settings { scale: 0.5, soft_cap: Some(3.0), pieces: 1 };
            let factor = tensor(&case.device, &[1.5_f32], [1]);
            let [padded, dense] = both(&case, "scores", [rows, classes]).map(|scores| {
                let parts = case.single().tensor(&vec![0.0; 3 * rows], [1, 3, rows]);
                statistics(&scores, &targets, run, settings.soft_cap, &parts).unwrap();
                let merged = merge(&parts, &targets, classes, mean).unwrap();
                gradient(&scores, &targets, &merged.statistics, run, &settings, &factor).unwrap();
                (merged.loss, scores)
            });
            assert_eq!(padded.0.dtype(), DType::F32);
            same(&case, &what("merged loss"), &read(&padded.0), &read(&dense.0));
            let slopes = without_padding(&padded.1, classes);
            same(&case, &what("gradient of the run"), &slopes, &read(&dense.1));
        }
    }
}
