//! One call of every operator, for tests that compare whole runs: on threads, and on Meta.

use device::{Category, Device, Request};
use tensor::ops::{
    Activation, GradientTarget, activation, adamw, add, attention, cross_entropy, embedding, fill,
    layer_norm, linear, mse, norm, random, scale, sgd,
};
use tensor::{DType, Tensor};

use crate::support::{indices, normal, tensor};

/// Sizes of a step; none is a multiple of a tile.
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) time: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) vocab: usize,
}

/// Runs every operator once on operands of `sizes` and calls `after(operator, results)` after each.
pub(crate) fn every_operator(
    device: &Device,
    sizes: &Sizes,
    mut after: impl FnMut(&'static str, &[&Tensor]),
) {
    let Sizes { batch, time, width, heads, vocab } = *sizes;
    let make = |name: &str, shape: &[usize]| {
        let values = normal(name, shape.iter().product());
        match *shape {
            [a] => tensor(device, &values, [a]),
            [a, b] => tensor(device, &values, [a, b]),
            [a, b, c] => tensor(device, &values, [a, b, c]),
            _ => unreachable!("operands here have up to three dimensions"),
        }
    };
    let into =
        |name: &str, shape: &[usize], accumulate| GradientTarget { tensor: make(name, shape), accumulate };
    let tokens = tensor(device, &indices("tokens", batch * time, vocab), [batch, time]);
    let (table, positions) = (make("table", &[vocab, width]), make("positions", &[time + 3, width]));
    let (gamma, beta) = (make("gamma", &[width]), make("beta", &[width]));

    let x = embedding::forward(&tokens, &table, &positions).unwrap();
    after("embedding.forward", &[&x]);
    let normed = layer_norm::forward(&x, &gamma, &beta, 1e-5).unwrap();
    after("layer_norm.forward", &[&normed.output, &normed.mean, &normed.rstd]);
    let (weight, bias) = (make("qkv", &[3 * width, width]), make("qkv bias", &[3 * width]));
    let qkv = linear::forward(&normed.output, &weight, Some(&bias), Activation::None).unwrap().output;
    after("linear.forward", &[&qkv]);
    let mixed = attention::forward(&qkv, heads).unwrap();
    after("attention.forward", &[&mixed.output, &mixed.logsumexp]);
    let (sum, second) = layer_norm::forward_residual(&x, &mixed.output, &gamma, &beta, 1e-5).unwrap();
    after("layer_norm.forward_residual", &[&sum, &second.output, &second.mean, &second.rstd]);
    for kind in [Activation::Relu, Activation::Gelu] {
        let made = linear::forward(&second.output, &weight, Some(&bias), kind).unwrap();
        let saved = made.pre_activation.as_ref().unwrap_or(&made.output);
        after("linear.forward with activation", &[&made.output, saved]);
        let dy = make("dy wide", &[batch, time, 3 * width]);
        let apart = linear::backward_activation(dy.clone(), saved, kind).unwrap();
        after("linear.backward_activation", &[&apart]);
        let in_place = linear::backward_activation(dy, saved, kind).unwrap();
        after("linear.backward_activation in place", &[&in_place]);
        after("activation.forward", &[&activation::forward(&sum, kind).unwrap()]);
    }
    let added = add::forward(&x, &sum).unwrap();
    after("add.forward", &[&added]);
    add::into(&added, &sum).unwrap();
    after("add.into", &[&added]);
    scale::in_place(&added, 0.7).unwrap();
    after("scale.in_place", &[&added]);

    let head = make("head", &[vocab, width]);
    let logits = linear::forward(&added, &head, None, Activation::None).unwrap().output;
    let loss = cross_entropy::forward(logits.clone(), &tokens, 0.5, false).unwrap().loss;
    after("cross_entropy.forward", &[&loss]);
    let apart = cross_entropy::forward(logits.clone(), &tokens, 0.5, true).unwrap();
    after("cross_entropy.forward apart", &[&apart.loss, apart.gradient.as_ref().unwrap()]);
    let in_place = cross_entropy::forward(logits, &tokens, 0.5, true).unwrap();
    after("cross_entropy.forward in place", &[&in_place.loss]);
    after("mse", &[&mse::forward(&x, &sum, 0.5).unwrap(), &mse::backward(&x, &sum, 0.5).unwrap()]);

    let dlogits = in_place.gradient.unwrap();
    let dx = linear::backward_input(&dlogits, &head).unwrap();
    after("linear.backward_input", &[&dx]);
    for accumulate in [false, true] {
        let (dweight, dbias) = (into("dw", &[vocab, width], accumulate), into("db", &[vocab], accumulate));
        linear::backward_weight(&dlogits, &added, &dweight, Some(&dbias)).unwrap();
        after("linear.backward_weight", &[&dweight.tensor, &dbias.tensor]);
        let (dgamma, dbeta) = (into("dg", &[width], accumulate), into("db", &[width], accumulate));
        layer_norm::backward_weight(&dx, &sum, &second.mean, &second.rstd, &dgamma, &dbeta).unwrap();
        after("layer_norm.backward_weight", &[&dgamma.tensor, &dbeta.tensor]);
        let (dtable, dpositions) =
            (into("dt", &[vocab, width], accumulate), into("dp", &[time + 3, width], accumulate));
        embedding::backward_weight(&dx, &tokens, &dtable, &dpositions).unwrap();
        after("embedding.backward_weight", &[&dtable.tensor, &dpositions.tensor]);
        let dsum = accumulate.then_some(&dx);
        let dsum = layer_norm::backward_input(&dx, dsum, &sum, &gamma, &second.mean, &second.rstd).unwrap();
        after("layer_norm.backward_input", &[&dsum]);
    }
    let dqkv = attention::backward(&dx, &qkv, &mixed.output, &mixed.logsumexp, heads).unwrap();
    after("attention.backward", &[&dqkv]);

    let sums = Tensor::empty(
        device,
        [norm::chunks(dqkv.elements())],
        DType::F32,
        Request::new(Category::Workspace, "scenario"),
    );
    let (sums, out) = (sums.unwrap(), make("out", &[2]));
    norm::chunk_sums(&dqkv, &sums).unwrap();
    norm::finish(&sums, 1.0, &out).unwrap();
    after("norm", &[&sums, &out]);
    let (first, moment) = (make("m", &[vocab, width]), make("v", &[vocab, width]));
    fill::constant(&moment, 0.25).unwrap();
    let item = adamw::Item { weight: &table, gradient: &head, first: &first, second: &moment, decay: true };
    let hyper = adamw::Hyper {
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        step: 2,
    };
    adamw::step(&[item], &hyper, Some(&out)).unwrap();
    after("adamw.step", &[&table, &first, &moment]);
    let item = sgd::Item { weight: &table, gradient: &head, momentum: Some(&first) };
    let hyper = sgd::Hyper { learning_rate: 1e-3, momentum: 0.9, weight_decay: 0.1, first_step: false };
    sgd::step(&[item], &hyper, Some(&out)).unwrap();
    after("sgd.step", &[&table, &first]);
    random::normal(&table, 1, "table", 0.0, 0.02).unwrap();
    random::uniform(&head, 1, "head", -1.0, 1.0).unwrap();
    after("random", &[&table, &head]);
}
