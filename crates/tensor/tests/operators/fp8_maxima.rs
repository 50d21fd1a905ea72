//! Largest magnitudes that operators measure in their results for casts to FP8. A cast of a measured tensor
//! is compared with a model that searches for the maximum.

use device::{E4m3, E5m2};
use tensor::ops::attention::{self, Heads, Masks, Qkv};
use tensor::ops::dropout::Mask;
use tensor::ops::fp8_linear::{self, Cast, Input, Recipe};
use tensor::ops::rotary::{Angles, Rotation};
use tensor::ops::{Activation, gate, layer_norm, qk_norm, rms_norm, rotary};
use tensor::{DType, Tensor};

use crate::fp8_linear::{cases, check_cast, wide};
use crate::rotary::{documents, table};
use crate::support::{Case, bits, read};

/// Compares a cast of `x`, whose maximum is measured on a GPU, with its model.
fn check(what: &str, case: &Case, x: &Tensor) {
    assert_eq!(x.maxima().is_some(), case.device.is_cuda_like(), "{what}");
    let cast = Cast::new(DType::E4m3, Recipe::Tensorwise).stored().transposed();
    let cast = fp8_linear::quantise(x, Input::Plain, cast).unwrap();
    let columns = x.shape().columns();
    check_cast::<E4m3>(what, &wide(case, x), columns, Recipe::Tensorwise, &cast);
}

/// Heads with and without a Hopper kernel, in sequences that end within a tile.
const ATTENTION: [(usize, usize, Heads); 4] = [
    (2, 70, Heads::grouped(4, 2, 32)),
    (1, 300, Heads::grouped(2, 2, 64)),
    (2, 150, Heads::grouped(4, 1, 64)),
    (1, 200, Heads::grouped(2, 1, 128)),
];

#[test]
fn attention_measures_its_output_and_gradients() {
    for case in cases() {
        for (batch, time, heads) in ATTENTION {
            let (first, _) = documents(&case, batch, time);
            let masks = [
                Masks::default(),
                Masks { documents: Some(&first), dropout: None, sinks: None },
                Masks { documents: None, dropout: Some(Mask::new(1, "site", 7, 0.2)), sinks: None },
            ];
            let (packed, _) = case.operand("qkv", [batch, time, heads.packed_columns()]);
            let part = |name, columns| case.operand(name, [batch, time, columns]).0;
            let apart = Qkv::Separate([
                part("queries", heads.query_columns()),
                part("keys", heads.key_columns()),
                part("values", heads.value_columns()),
            ]);
            let (dy, _) = case.operand("dy", [batch, time, heads.query_columns()]);
            for (qkv, masks) in [&Qkv::Packed(packed), &apart].into_iter().flat_map(|q| masks.map(|m| (q, m)))
            {
                let what = format!("{} {batch}x{time} {heads:?} {masks:?}", case.name());
                let run = |measures| {
                    let result = attention::forward(qkv, heads, masks, measures).unwrap();
                    let output = &result.output;
                    let rows = &result.logsumexp;
                    let back = attention::backward(&dy, qkv, output, rows, heads, masks, measures);
                    (result.output, back.unwrap().into_vec())
                };
                let ((output, gradients), (plain, plain_gradients)) = (run(true), run(false));
                assert_eq!(bits(&output), bits(&plain), "{what}");
                if case.dtype == DType::Bf16 {
                    check(&what, &case, &output);
                }
                for (gradient, plain) in gradients.iter().zip(&plain_gradients) {
                    assert_eq!(bits(gradient), bits(plain), "{what}");
                    if case.dtype == DType::Bf16 {
                        check(&what, &case, gradient);
                    }
                }
            }
        }
    }
}

#[test]
fn rotations_back_measure_whole_rows() {
    for case in cases() {
        // Whole vectors of halves, and none; the largest magnitude lies in a query or in a value.
        for (batch, time, heads) in [
            (2, 33, Heads::grouped(4, 2, 32)),
            (1, 20, Heads::grouped(2, 2, 24)),
            (3, 50, Heads::grouped(2, 1, 96)),
        ] {
            let columns = heads.packed_columns();
            let table = table(&case, heads.width, time);
            let (first, _) = documents(&case, batch, time);
            for at in [3, columns - 2] {
                let what = format!("{} {batch}x{time} {heads:?} {at}", case.name());
                let mut values = case.normal("dy", batch * time * columns);
                values[(batch * time - 1) * columns + at] = 50.0;
                let dy = || case.tensor(&values, [batch, time, columns]);
                let angles =
                    Angles { table: &table, head_width: None, documents: Some(&first), interleaved: false };
                let turned = heads.query + heads.key_value;
                let turn =
                    |measures| rotary::rotate(dy(), turned, angles, Rotation::Backward, measures).unwrap();
                let gradient = turn(true);
                let plain = turn(false);
                assert_eq!(bits(&gradient), bits(&plain), "{what}");
                check(&what, &case, &gradient);

                let (qkv, _) = case.operand("qkv", [batch, time, columns]);
                let (query, _) = case.operand("query", [heads.width]);
                let (key, _) = case.operand("key", [heads.width]);
                let weights = qk_norm::Weights { query: &query, key: &key };
                let rstd = qk_norm::forward(&qkv, heads, weights, angles, 1e-6).unwrap().rstd;
                let back = |measures| {
                    qk_norm::backward_input(dy(), &qkv, &rstd, heads, weights, angles, measures)
                        .unwrap()
                        .input
                };
                let dqkv = back(true);
                let plain = back(false);
                assert_eq!(bits(&dqkv), bits(&plain), "{what}");
                check(&what, &case, &dqkv);
            }
        }
    }
}

#[test]
fn norms_measure_what_they_write() {
    for case in cases() {
        // A row by a warp, a row by a block, and rows of any width.
        for width in [96, 2064, 16_400] {
            let settings = layer_norm::Settings { epsilon: 1e-5, measures: true, block_per_row: false };
            let (x, _) = case.operand("x", [19, width]);
            let (branch, _) = case.operand("branch", [19, width]);
            let (dy, _) = case.operand("dy", [19, width]);
            let (weight, _) = case.operand("weight", [width]);
            let (sum, layer) =
                layer_norm::forward_residual(&x, &branch, &weight, Some(&weight), settings).unwrap();
            let rms = rms_norm::forward(&x, &weight, settings).unwrap();
            let mean = &layer.mean;
            let rstd = &layer.rstd;
            let layer_dx =
                layer_norm::backward_input(&dy, Some(&x), &sum, &weight, mean, rstd, true).unwrap();
            let rms_dx = rms_norm::backward_input(&dy, None, &x, &weight, &rms.rstd, true).unwrap();
            for (number, tensor) in [layer.output, rms.output, layer_dx, rms_dx].into_iter().enumerate() {
                check(&format!("{number} of width {width}, {}", case.name()), &case, &tensor);
            }
        }
    }
}

#[test]
fn gradients_are_measured_where_they_are_made() {
    for case in cases() {
        for activation in Activation::ALL.into_iter().filter(|activation| *activation != Activation::None) {
            let what = format!("{activation:?} {}", case.name());
            let cast = Cast::new(DType::E5m2, Recipe::Tensorwise).stored().transposed();
            let (saved, _) = case.operand("saved", [130, 96]);
            let dy = || case.operand("dy", [130, 96]).0;
            let measured = fp8_linear::backward_activation(dy(), &saved, activation).unwrap();
            let (output, _) = fp8_linear::quantise_gradient(&measured, cast, false).unwrap();
            check_cast::<E5m2>(&what, &wide(&case, &measured), 96, Recipe::Tensorwise, &output);
            let apart = tensor::ops::activation::backward(dy(), &saved, activation).unwrap();
            case.close(&what, &read(&measured), &read(&apart));

            let pair = case.operand("pair", [130, 192]).0;
            let hidden = dy();
            let same = case.operand("pair", [130, 192]).0;
            let measured = fp8_linear::backward_gate(pair, &hidden, activation).unwrap();
            gate::backward(&same, &dy(), activation).unwrap();
            assert_eq!(bits(&measured), bits(&same), "{what}");
            let (output, _) = fp8_linear::quantise_gradient(&measured, cast, false).unwrap();
            check_cast::<E5m2>(&what, &wide(&case, &measured), 192, Recipe::Tensorwise, &output);
        }
    }
}
