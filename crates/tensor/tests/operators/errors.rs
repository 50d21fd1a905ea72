use device::{Category, Device};
use tensor::ops::attention::{Heads, Masks, Qkv};
use tensor::ops::optimizer::{self, Item, Stream, UpdateRule};
use tensor::ops::{
    Activation, GradientTarget, StepState, Table, activation, add, attention, cast, cross_entropy, embedding,
    feed_forward, fill, gate, layer_norm, linear, mse, norm, qk_norm, random, rms_norm, rotary, scale, tree,
};
use tensor::{DType, Tensor, TensorError};

use crate::support::{cpu, typed};

fn zeros<const N: usize>(device: &Device, shape: [usize; N]) -> Tensor {
    Tensor::from_host(device, &vec![0.0f32; shape.iter().product()], shape, Category::Other).unwrap()
}

fn ids<const N: usize>(device: &Device, values: &[u32], shape: [usize; N]) -> Tensor {
    Tensor::from_host(device, values, shape, Category::Other).unwrap()
}

fn overwrite(tensor: &Tensor) -> GradientTarget {
    GradientTarget { tensor: tensor.clone(), accumulate: false }
}

/// Part of the expected message, and the result of the refused call.
type Refusals = Vec<(&'static str, Result<(), TensorError>)>;

fn check(table: Refusals) {
    for (expected, result) in table {
        let error = result.expect_err(expected).to_string();
        assert!(error.contains(expected), "'{error}' does not say '{expected}'");
    }
}

#[test]
fn refusals_of_layers() {
    let device = cpu();
    let [v3, v4, row2] = [zeros(&device, [3]), zeros(&device, [4]), zeros(&device, [2])];
    let [m23, m34, m24] = [zeros(&device, [2, 3]), zeros(&device, [3, 4]), zeros(&device, [2, 4])];
    let tokens = ids(&device, &[0, 1], [1, 2]);
    let none = Activation::None;
    let norm_of = |dy: &Tensor, dsum: Option<&Tensor>, mean: &Tensor| {
        layer_norm::backward_input(dy, dsum, &m23, &v3, mean, &row2, false)
    };
    let weight_of = |dy: &Tensor, weight: &Tensor, bias: &Tensor| {
        linear::backward_weight(dy, &m23, &overwrite(weight), Some(&overwrite(bias)))
    };
    let pair_of =
        |x: &Tensor, w1: &Tensor| feed_forward::forward(x, w1, Some(&v3), &m34, Some(&v4), Activation::Gelu);
    check(vec![
        ("linear.forward: x has", linear::forward(&m23, &m23.reshape([3, 2]).unwrap(), None, none).map(drop)),
        ("linear.forward: weight has", linear::forward(&m23, &v3, None, none).map(drop)),
        ("linear.forward: bias has", linear::forward(&m24, &m34, Some(&v4), none).map(drop)),
        ("linear.forward: x is u32", linear::forward(&tokens, &m34, None, none).map(drop)),
        ("linear.backward_input: dy", linear::backward_input(&m24, &m34).map(drop)),
        ("linear.backward_weight: x", weight_of(&v4, &m34, &v3)),
        ("linear.backward_weight: weight", weight_of(&m24, &m34, &v4)),
        ("linear.backward_weight: bias", weight_of(&m24, &zeros(&device, [4, 3]), &v3)),
        ("feed_forward.forward: x has", pair_of(&m24, &m34).map(drop)),
        ("feed_forward.forward: weight has", pair_of(&m23, &v3).map(drop)),
        (
            "pre_activation has",
            feed_forward::backward_input_hidden(&m24, &zeros(&device, [4, 5]), &m24, Activation::Gelu)
                .map(drop),
        ),
        ("activation.backward: saved", activation::backward(v3.clone(), &v4, Activation::Gelu).map(drop)),
        ("activation.forward: x is u32", activation::forward(&tokens, none).map(drop)),
        ("layer_norm.forward: weight", layer_norm::forward(&m23, &v4, Some(&v3), 1e-5).map(drop)),
        ("layer_norm.forward: bias", layer_norm::forward(&m23, &v3, Some(&v4), 1e-5).map(drop)),
        (
            "layer_norm.forward: x",
            layer_norm::forward(&zeros(&device, [2, 0]), &v3, Some(&v3), 1e-5).map(drop),
        ),
        (
            "forward_residual: branch",
            layer_norm::forward_residual(&m23, &m24, &v3, Some(&v3), 1e-5).map(drop),
        ),
        ("layer_norm.backward_input: dy", norm_of(&m24, None, &row2).map(drop)),
        ("layer_norm.backward_input: dsum", norm_of(&m23, Some(&m24), &row2).map(drop)),
        ("layer_norm.backward_input: mean", norm_of(&m23, None, &v3).map(drop)),
    ]);
}

#[test]
fn refusals_of_rotations_and_gates() {
    let device = cpu();
    let [v3, v4, rows] = [zeros(&device, [3]), zeros(&device, [4]), zeros(&device, [2])];
    let [m23, m24, table] = [zeros(&device, [2, 3]), zeros(&device, [2, 4]), zeros(&device, [2, 4])];
    let qkv = zeros(&device, [1, 2, 12]);
    let long = zeros(&device, [1, 3, 12]);
    let documents = ids(&device, &[0, 2], [1, 2]);
    let heads = Heads::multi(1, 4);
    let at = |table, documents| rotary::Angles { table, head_width: None, documents, interleaved: false };
    let rotate = |x: &Tensor, heads, angles| {
        rotary::rotate(x.clone(), heads, angles, rotary::Rotation::Forward, false)
    };
    let norm = |x: &Tensor, heads, query, angles| {
        qk_norm::forward(x, heads, qk_norm::Weights { query, key: &v4 }, angles, 1e-6).map(drop)
    };
    check(vec![
        ("rms_norm.forward: weight", rms_norm::forward(&m23, &v4, 1e-5).map(drop)),
        ("rms_norm.forward: x", rms_norm::forward(&zeros(&device, [2, 0]), &v3, 1e-5).map(drop)),
        ("forward_residual: branch", rms_norm::forward_residual(&m23, &m24, &v3, 1e-5).map(drop)),
        (
            "rms_norm.backward_input: dy",
            rms_norm::backward_input(&m24, None, &m23, &v3, &rows, false).map(drop),
        ),
        ("backward_input: rstd", rms_norm::backward_input(&m23, None, &m23, &v3, &v3, false).map(drop)),
        ("backward_weight: weight", rms_norm::backward_weight(&m23, &m23, &rows, &overwrite(&v4))),
        ("rotary.rotate: x has", rotate(&qkv, 4, at(&table, None)).map(drop)),
        ("rotary.rotate: x has", rotate(&m24, 1, at(&table, None)).map(drop)),
        ("rotary.rotate: table has", rotate(&long, 1, at(&table, None)).map(drop)),
        ("rotary.rotate: table has", rotate(&qkv, 1, at(&m23, None)).map(drop)),
        (
            "rotary.rotate: documents has",
            rotate(&long, 1, at(&zeros(&device, [3, 4]), Some(&documents))).map(drop),
        ),
        ("rotary.rotate: documents is f32", rotate(&qkv, 1, at(&table, Some(&m24))).map(drop)),
        ("rotary.rotate: index 2", rotate(&qkv, 1, at(&table, Some(&documents))).map(drop)),
        ("qk_norm.forward: qkv has", norm(&zeros(&device, [1, 2, 8]), heads, &v4, at(&table, None))),
        ("qk_norm.forward: query weight", norm(&qkv, heads, &v3, at(&table, None))),
        ("qk_norm.forward: table has", norm(&qkv, Heads::multi(2, 2), &v4, at(&table, None))),
        ("gate.forward: pair has", gate::forward(&m23, Activation::Silu).map(drop)),
        ("gate.backward: hidden has", gate::backward(&m24, &m23, Activation::Silu)),
    ]);
}

#[test]
fn refusals_of_attention() {
    let device = cpu();
    let array = |columns| zeros(&device, [1, 2, columns]);
    let whole = |columns| Qkv::Packed(array(columns));
    let apart =
        |[queries, keys, values]: [usize; 3]| Qkv::Separate([array(queries), array(keys), array(values)]);
    let heads = |query, key_value, width| Heads::grouped(query, key_value, width);
    let forward =
        |qkv: Qkv<Tensor>, heads: Heads| attention::forward(&qkv, heads, Masks::default(), false).map(drop);
    let flat = Qkv::Packed(zeros(&device, [2, 12]));
    let tokens = ids(&device, &[0; 24], [1, 2, 12]);
    let mixed = Qkv::Separate([array(4), array(2), typed(&device, DType::Bf16, &[0.0; 4], [1, 2, 2])]);
    let shorter = Qkv::Separate([array(4), zeros(&device, [1, 1, 2]), array(2)]);
    let backward = |dy: &Tensor, output: &Tensor, logsumexp: &Tensor| {
        attention::backward(dy, &whole(8), output, logsumexp, heads(2, 1, 2), Masks::default(), false)
            .map(drop)
    };
    let sums = zeros(&device, [1, 2, 2]);
    let none = "attention.forward: 0 query heads and 1 key and value heads of width 2";
    check(vec![
        (
            "attention.forward: qkv has shape [1, 2, 12], expected [1, 2, 8]",
            forward(whole(12), heads(2, 1, 2)),
        ),
        ("attention.forward: qkv has shape [2, 12]", forward(flat, Heads::multi(2, 2))),
        ("attention.forward: qkv has", forward(whole(0), Heads::multi(2, 2))),
        ("attention.forward: qkv is u32", forward(Qkv::Packed(tokens), Heads::multi(2, 2))),
        (none, forward(whole(8), heads(0, 1, 2))),
        ("2 query heads and 0 key and value heads", forward(whole(8), heads(2, 0, 2))),
        ("3 query heads and 2 key and value heads", forward(whole(14), heads(3, 2, 2))),
        ("of width 0", forward(whole(8), heads(2, 1, 0))),
        ("attention.forward: queries has", forward(apart([6, 2, 2]), heads(2, 1, 2))),
        ("attention.forward: keys has", forward(apart([4, 4, 2]), heads(2, 1, 2))),
        ("attention.forward: keys has", forward(shorter, heads(2, 1, 2))),
        ("attention.forward: values has", forward(apart([4, 2, 4]), heads(2, 1, 2))),
        ("attention.forward: values is bf16, expected f32", forward(mixed, heads(2, 1, 2))),
        ("attention.backward: dy", backward(&array(2), &array(4), &sums)),
        ("attention.backward: output", backward(&array(4), &array(2), &sums)),
        ("attention.backward: logsumexp", backward(&array(4), &array(4), &array(4))),
    ]);
}

#[test]
fn refusals_of_sequences_and_losses() {
    let device = cpu();
    let [m23, m34, m24] = [zeros(&device, [2, 3]), zeros(&device, [3, 4]), zeros(&device, [2, 4])];
    let [b, row2] = [zeros(&device, [1, 2, 4]), zeros(&device, [1, 1, 2])];
    let tokens = ids(&device, &[0, 1], [1, 2]);
    let many = ids(&device, &[0, 1, 0, 1, 0], [1, 5]);
    let high = ids(&device, &[0, 7], [1, 2]);
    let loss = |logits: &Tensor, targets: &Tensor| cross_entropy::forward(logits.clone(), targets, 1.0, true);
    check(vec![
        ("embedding.forward: tokens is f32", embedding::forward(&m23, &m34, Some(&m34)).map(drop)),
        ("embedding.forward: table", embedding::forward(&tokens, &row2, None).map(drop)),
        ("embedding.forward: positions", embedding::forward(&tokens, &m23, Some(&m34)).map(drop)),
        ("embedding.forward: positions", embedding::forward(&many, &m34, Some(&m34)).map(drop)),
        ("index 7 is outside 0..3", embedding::forward(&high, &m34, Some(&m34)).map(drop)),
        ("index 7 is outside 0..3", embedding::forward(&high, &m34, None).map(drop)),
        (
            "index 7 is outside 0..3",
            embedding::backward_weight(&b, &high, &overwrite(&m34), Some(&overwrite(&m24))),
        ),
        ("embedding.backward_weight: dy", embedding::backward_weight(&m24, &high, &overwrite(&m34), None)),
        ("cross_entropy.forward: targets has", loss(&m23, &many).map(drop)),
        ("cross_entropy.forward: targets is f32", loss(&m23, &row2).map(drop)),
        ("cross_entropy.forward: logits", loss(&zeros(&device, [0, 3]), &tokens).map(drop)),
        ("index 7 is outside 0..3", loss(&m23, &high).map(drop)),
    ]);
}

#[test]
fn refusals_of_elementwise_operators_and_optimizers() {
    let device = cpu();
    let [v3, v4] = [zeros(&device, [3]), zeros(&device, [4])];
    let row2 = zeros(&device, [2]);
    let tokens = ids(&device, &[0, 1], [1, 2]);
    let table = Table::of_parameters(&device, 1).unwrap();
    let state = StepState::new(&device).unwrap();
    let adamw = UpdateRule::AdamW { beta1: 0.9, beta2: 0.9, epsilon: 1.0, weight_decay: 0.0 };
    let adam_of = |gradient: &Tensor, first: &Tensor, second: &Tensor| {
        let states = &[first.clone(), second.clone()];
        let item = Item {
            weight: &v3,
            gradient,
            states,
            maxima: &[],
            compute: None,
            decay: true,
            stream: Stream::default(),
        };
        optimizer::update(&table, &adamw, &[item], &state)
    };
    let sgd_of = |gradient: &Tensor, velocity: Option<&Tensor>, compute: Option<&Tensor>| {
        let rule =
            UpdateRule::Sgd { momentum: if velocity.is_some() { 0.9 } else { 0.0 }, weight_decay: 0.0 };
        let states = &velocity.cloned().into_iter().collect::<Vec<_>>();
        let item = Item {
            weight: &v3,
            gradient,
            states,
            maxima: &[],
            compute,
            decay: true,
            stream: Stream::default(),
        };
        optimizer::update(&table, &rule, &[item], &state)
    };
    let half = |shape: [usize; 1]| typed(&device, DType::Bf16, &vec![0.0; shape[0]], shape);
    check(vec![
        ("mse.forward: target", mse::forward(&v3, &v4, 1.0).map(drop)),
        ("mse.backward: target", mse::backward(&v3, &v4, 1.0).map(drop)),
        ("mse.forward: prediction", mse::forward(&zeros(&device, [0]), &zeros(&device, [0]), 1.0).map(drop)),
        ("add.forward: b", add::forward(&v3, &v4).map(drop)),
        ("add.into: source", add::into(&v3, &v4)),
        ("in use", add::into(&v3, &v3)),
        ("scale.in_place: tensor is u32", scale::in_place(&tokens, 1.0)),
        ("fill.constant: target is u32", fill::constant(&tokens, 1.0)),
        ("random.normal: target is u32", random::normal(&tokens, 1, "x", 0.0, 1.0)),
        ("random.uniform: target is u32", random::uniform(&tokens, 1, "x", 0.0, 1.0)),
        ("norm.chunk_sums: sums", norm::chunk_sums(&v3, &row2)),
        ("norm.finish: sums is u32", norm::finish(&tokens, 1.0, &state)),
        ("adamw.step: gradient", adam_of(&v4, &v3, &v3)),
        ("adamw.step: adamw.second", adam_of(&v3, &v3, &v4)),
        ("in use", adam_of(&v3, &zeros(&device, [3]), &zeros(&device, [3]))),
        ("sgd.step: gradient", sgd_of(&v4, None, None)),
        ("sgd.step: sgd.velocity", sgd_of(&zeros(&device, [3]), Some(&v4), None)),
        ("sgd.step: compute is f32", sgd_of(&zeros(&device, [3]), None, Some(&v3))),
        ("sgd.step: compute has", sgd_of(&zeros(&device, [3]), None, Some(&half([4])))),
        ("adamw.step: 0 tensors, expected 1", optimizer::update(&table, &adamw, &[], &state)),
        ("add.forward: b is bf16, expected f32", add::forward(&v3, &half([3])).map(drop)),
        ("add.forward: b is f32, expected bf16", add::forward(&half([3]), &v3).map(drop)),
        ("cast.into: source is u32", cast::into(&tokens, &v3)),
        ("cast.into: target is f32, expected bf16 or f16", cast::into(&v3, &v3)),
        ("cast.into: target has", cast::into(&v3, &half([4]))),
    ]);
}

/// Integer tensors are buffers only; operators that compute refuse them.
#[test]
fn operators_refuse_types_that_they_do_not_implement() {
    let device = cpu();
    let [v2, m22] = [ids(&device, &[0; 2], [2]), ids(&device, &[0; 4], [2, 2])];
    let sequence = ids(&device, &[0; 6], [1, 2, 3]);
    let tokens = ids(&device, &[0, 1], [1, 2]);
    let sums = zeros(&device, [1]);
    let none = Activation::None;
    check(vec![
        ("activation.forward: x is u32", activation::forward(&m22, Activation::Gelu).map(drop)),
        ("add.forward: a is u32", add::forward(&v2, &v2).map(drop)),
        (
            "attention.forward: qkv is u32",
            attention::forward(&Qkv::Packed(sequence.clone()), Heads::multi(1, 2), Masks::default(), false)
                .map(drop),
        ),
        ("cast.into: source is u32", cast::into(&v2, &zeros(&device, [2]))),
        ("cast.into: target is u32, expected bf16 or f16", cast::into(&zeros(&device, [2]), &v2)),
        (
            "cross_entropy.forward: logits is u32",
            cross_entropy::forward(m22.clone(), &v2, 1.0, true).map(drop),
        ),
        ("embedding.forward: table is u32", embedding::forward(&tokens, &m22, Some(&m22)).map(drop)),
        ("fill.constant: target is u32, expected f32 or bf16 or f16", fill::constant(&v2, 1.0)),
        ("layer_norm.forward: x is u32", layer_norm::forward(&m22, &v2, Some(&v2), 1e-5).map(drop)),
        ("linear.forward: x is u32", linear::forward(&m22, &m22, None, none).map(drop)),
        ("mse.forward: prediction is u32", mse::forward(&v2, &v2, 1.0).map(drop)),
        ("norm.chunk_sums: x is u32", norm::chunk_sums(&v2, &sums)),
        ("scale.in_place: tensor is u32", scale::in_place(&v2, 1.0)),
        (
            "tree.into: target is u32",
            tree::into_on(
                &v2,
                std::slice::from_ref(&v2),
                &tree::SumTree::balanced(1),
                device::StreamKind::Compute,
            ),
        ),
    ]);
}

#[test]
fn a_refused_call_changes_no_operand() {
    let device = cpu();
    let scores = zeros(&device, [2, 3]);
    let view = scores.view(0, [2, 3]).unwrap();
    assert!(cross_entropy::forward(scores, &ids(&device, &[0, 3], [2]), 1.0, true).is_err());
    assert_eq!(view.to_vec::<f32>().unwrap(), [0.0; 6]);
    let table = GradientTarget { tensor: zeros(&device, [3, 4]), accumulate: false };
    let positions = GradientTarget { tensor: zeros(&device, [2, 4]), accumulate: false };
    table.tensor.set(&[1.0f32; 12]).unwrap();
    let dy = zeros(&device, [1, 2, 4]);
    let tokens = ids(&device, &[0, 3], [1, 2]);
    assert!(embedding::backward_weight(&dy, &tokens, &table, Some(&positions)).is_err());
    assert_eq!(table.tensor.to_vec::<f32>().unwrap(), [1.0; 12]);
}
