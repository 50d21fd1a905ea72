//! One call of every operator, for tests that compare sequences of all operators on several threads and on
//! Meta.

use device::{Category, Device};
use tensor::ops::attention::{Heads, Masks, Qkv};
use tensor::ops::optimizer::{self, Item, Stream, UpdateRule};
use tensor::ops::{
    Activation, GradientTarget, StepState, Table, activation, add, attention, cast, cross_entropy, dropout,
    embedding, feed_forward, fill, gate, layer_norm, linear, mse, norm, qk_norm, random, rms_norm, rotary,
    scale,
};
use tensor::{DType, Tensor};

use crate::support::{indices, normal, tensor, typed};
use crate::{scenario_general, scenario_images};

/// Sizes of a step; none is a multiple of a tile.
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) time: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) vocab: usize,
    /// Type of activations and weights.
    pub(crate) dtype: DType,
    /// Type of the weights' gradients.
    pub(crate) gradients: DType,
}

impl Sizes {
    pub(crate) const fn new(
        [batch, time, width, heads, vocab]: [usize; 5],
        dtype: DType,
        gradients: DType,
    ) -> Self {
        Sizes { batch, time, width, heads, vocab, dtype, gradients }
    }
}

/// Runs every operator once on operands of `sizes` and calls `after(operator, results)` after each.
pub(crate) fn every_operator(device: &Device, sizes: &Sizes, after: impl FnMut(&'static str, &[&Tensor])) {
    let mut run = Run { device, sizes, after };
    let saved = run.forward();
    run.activations(&saved);
    run.pair(&saved);
    run.gated();
    run.rms(&saved);
    run.positions();
    run.masked(&saved);
    let (head, added, dlogits) = run.losses(&saved);
    let dqkv = run.backward(&saved, &head, &added, &dlogits);
    run.update(&dqkv, &head);
    let Run { mut after, .. } = run;
    scenario_general::every_general_operator(device, sizes, &mut after);
    scenario_images::every_image_operator(device, sizes, &mut after);
}

/// A tensor of normal values.
pub(crate) fn make(device: &Device, dtype: DType, name: &str, shape: &[usize]) -> Tensor {
    let values = normal(name, shape.iter().product());
    match *shape {
        [a] => typed(device, dtype, &values, [a]),
        [a, b] => typed(device, dtype, &values, [a, b]),
        [a, b, c] => typed(device, dtype, &values, [a, b, c]),
        [a, b, c, d] => typed(device, dtype, &values, [a, b, c, d]),
        _ => unreachable!("operands have up to four dimensions"),
    }
}

struct Run<'a, F> {
    device: &'a Device,
    sizes: &'a Sizes,
    after: F,
}

/// Results of [`Run::forward`] for later operators.
struct Saved {
    tokens: Tensor,
    gamma: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    qkv: Qkv<Tensor>,
    mixed: attention::Output,
    sum: Tensor,
    second: layer_norm::Output,
}

impl<F: FnMut(&'static str, &[&Tensor])> Run<'_, F> {
    fn make(&self, name: &str, shape: &[usize]) -> Tensor {
        self.make_as(self.sizes.dtype, name, shape)
    }

    /// Tensors that are f32 in every run.
    fn make_f32(&self, name: &str, shape: &[usize]) -> Tensor {
        self.make_as(DType::F32, name, shape)
    }

    fn make_as(&self, dtype: DType, name: &str, shape: &[usize]) -> Tensor {
        make(self.device, dtype, name, shape)
    }

    fn target(&self, name: &str, shape: &[usize], accumulate: bool) -> GradientTarget {
        GradientTarget { tensor: self.make_as(self.sizes.gradients, name, shape), accumulate }
    }

    fn after(&mut self, operator: &'static str, results: &[&Tensor]) {
        (self.after)(operator, results);
    }

    fn forward(&mut self) -> Saved {
        let Sizes { batch, time, width, heads, vocab, .. } = *self.sizes;
        let tokens = tensor(self.device, &indices("tokens", batch * time, vocab), [batch, time]);
        let (table, positions) =
            (self.make("table", &[vocab, width]), self.make("positions", &[time + 3, width]));
        let (gamma, beta) = (self.make("gamma", &[width]), self.make("beta", &[width]));
        let x = embedding::forward(&tokens, &table, Some(&positions)).unwrap();
        self.after("embedding.forward", &[&x]);
        let alone = embedding::forward(&tokens, &table, None).unwrap();
        self.after("embedding.forward without positions", &[&alone]);
        let normed = layer_norm::forward(&x, &gamma, Some(&beta), 1e-5).unwrap();
        self.after("layer_norm.forward", &[&normed.output, &normed.mean, &normed.rstd]);
        let (weight, bias) = (self.make("qkv", &[3 * width, width]), self.make("qkv bias", &[3 * width]));
        let qkv = linear::forward(&normed.output, &weight, Some(&bias), Activation::None).unwrap().output;
        self.after("linear.forward", &[&qkv]);
        let qkv = Qkv::Packed(qkv);
        let mixed =
            attention::forward(&qkv, Heads::multi(heads, width / heads), Masks::default(), false).unwrap();
        self.after("attention.forward", &[&mixed.output, &mixed.logsumexp]);
        let (sum, second) =
            layer_norm::forward_residual(&x, &mixed.output, &gamma, Some(&beta), 1e-5).unwrap();
        self.after("layer_norm.forward_residual", &[&sum, &second.output, &second.mean, &second.rstd]);
        Saved { tokens, gamma, x, weight, bias, qkv, mixed, sum, second }
    }

    fn activations(&mut self, saved: &Saved) {
        let Sizes { batch, time, width, .. } = *self.sizes;
        let Saved { weight, bias, sum, second, .. } = saved;
        for kind in [Activation::Relu, Activation::Gelu] {
            let result = linear::forward(&second.output, weight, Some(bias), kind).unwrap();
            let saved = result.pre_activation.as_ref().unwrap_or(&result.output);
            self.after("linear.forward with activation", &[&result.output, saved]);
            let dy = self.make("dy wide", &[batch, time, 3 * width]);
            let apart = linear::backward_activation(dy.clone(), saved, kind).unwrap();
            self.after("linear.backward_activation", &[&apart]);
            let in_place = linear::backward_activation(dy, saved, kind).unwrap();
            self.after("linear.backward_activation in place", &[&in_place]);
            self.after("activation.forward", &[&activation::forward(sum, kind).unwrap()]);
        }
    }

    fn pair(&mut self, saved: &Saved) {
        let Sizes { batch, time, width, .. } = *self.sizes;
        let hidden = 4 * width;
        let (w1, b1) = (self.make("w1", &[hidden, width]), self.make("b1", &[hidden]));
        let (w2, b2) = (self.make("w2", &[width, hidden]), self.make("b2", &[width]));
        let result =
            feed_forward::forward(&saved.second.output, &w1, Some(&b1), &w2, Some(&b2), Activation::Gelu)
                .unwrap();
        self.after("feed_forward.forward", &[&result.output, &result.pre_activation, &result.activated]);
        let plain =
            feed_forward::forward(&saved.second.output, &w1, None, &w2, None, Activation::Gelu).unwrap();
        self.after("feed_forward.forward without biases", &[&plain.output, &plain.activated]);
        let dy = self.make("dy", &[batch, time, width]);
        let hidden =
            feed_forward::backward_input_hidden(&dy, &w2, &result.pre_activation, Activation::Gelu).unwrap();
        self.after("feed_forward.backward_input_hidden", &[&hidden]);
    }

    /// The gate of a gated feed-forward layer.
    fn gated(&mut self) {
        let Sizes { batch, time, width, .. } = *self.sizes;
        for kind in [Activation::Silu, Activation::Gelu, Activation::GeluErf, Activation::ReluSquared] {
            let pair = self.make("pair", &[batch, time, 4 * width]);
            let hidden = gate::forward(&pair, kind).unwrap();
            self.after("gate.forward", &[&hidden]);
            let slope = self.make("dhidden", &[batch, time, 2 * width]);
            gate::backward(&pair, &slope, kind).unwrap();
            self.after("gate.backward", &[&pair, &slope]);
        }
    }

    fn rms(&mut self, saved: &Saved) {
        let Sizes { batch, time, width, .. } = *self.sizes;
        let Saved { gamma, x, mixed, .. } = saved;
        let alone = rms_norm::forward(x, gamma, 1e-5).unwrap();
        self.after("rms_norm.forward", &[&alone.output, &alone.rstd]);
        let (sum, result) = rms_norm::forward_residual(x, &mixed.output, gamma, 1e-5).unwrap();
        self.after("rms_norm.forward_residual", &[&sum, &result.output, &result.rstd]);
        let dy = self.make("dy", &[batch, time, width]);
        for accumulate in [false, true] {
            let dsum = accumulate.then_some(&dy);
            let dx = rms_norm::backward_input(&dy, dsum, &sum, gamma, &result.rstd, false).unwrap();
            self.after("rms_norm.backward_input", &[&dx]);
            let target = self.target("dg", &[width], accumulate);
            rms_norm::backward_weight(&dy, &sum, &result.rstd, &target).unwrap();
            self.after("rms_norm.backward_weight", &[&target.tensor]);
        }
    }

    /// Rotates queries and keys to their positions, with and without normalisation.
    fn positions(&mut self) {
        let Sizes { batch, time, width, heads, dtype, .. } = *self.sizes;
        let heads = Heads::grouped(heads, 1, (width / heads).next_multiple_of(2));
        let frequencies =
            rotary::Frequencies { width: heads.width, theta: 1e4, scaling: rotary::Scaling::None };
        let table = tensor(self.device, &frequencies.table(time + 2), [time + 2, heads.width]);
        let first: Vec<u32> = (0..batch * time).map(|i| (i % time / 5 * 5) as u32).collect();
        let documents = tensor(self.device, &first, [batch, time]);
        let angles = rotary::Angles { table: &table, head_width: None, documents: Some(&documents) };
        let qkv = self.make("positions", &[batch, time, heads.packed_columns()]);
        let apart = rotary::rotate(qkv.clone(), 2, angles, rotary::Turn::Forward, false).unwrap();
        self.after("rotary.rotate apart", &[&apart]);
        let back = rotary::rotate(apart, 2, angles, rotary::Turn::Back, false).unwrap();
        self.after("rotary.rotate in place", &[&back]);
        let (query, key) = (self.make("query norm", &[heads.width]), self.make("key norm", &[heads.width]));
        let weights = qk_norm::Weights { query: &query, key: &key };
        let result = qk_norm::forward(&qkv, heads, weights, angles, 1e-6).unwrap();
        self.after("qk_norm.forward", &[&result.output, &result.rstd]);
        let gradients =
            qk_norm::backward_input(back, &qkv, &result.rstd, heads, weights, angles, false).unwrap();
        self.after("qk_norm.backward_input", &[&gradients.input, &gradients.sums]);
        for accumulate in [false, true] {
            let targets = ["dq", "dk"].map(|name| self.target(name, &[heads.width], accumulate));
            qk_norm::backward_weight(&gradients.sums, dtype, &targets[0], &targets[1]).unwrap();
            self.after("qk_norm.backward_weight", &[&targets[0].tensor, &targets[1].tensor]);
        }
    }

    /// Dropout of elements, and attention with dropout in packed documents.
    fn masked(&mut self, saved: &Saved) {
        let Sizes { batch, time, width, heads, .. } = *self.sizes;
        let mask = dropout::Mask::new(1, "site", 7, 0.2);
        let x = self.make("x", &[batch, time, width]);
        let apart = dropout::apply(x.clone(), mask, Category::Activation).unwrap();
        self.after("dropout.apply apart", &[&apart]);
        drop(apart);
        let in_place = dropout::apply(x, mask, Category::Activation).unwrap();
        self.after("dropout.apply in place", &[&in_place]);
        let first: Vec<u32> = (0..batch * time).map(|i| (i % time / 5 * 5) as u32).collect();
        let documents = tensor(self.device, &first, [batch, time]);
        let masks = Masks { documents: Some(&documents), dropout: Some(mask), sinks: None };
        let heads = Heads::multi(heads, width / heads);
        let result = attention::forward(&saved.qkv, heads, masks, false).unwrap();
        self.after("attention.forward masked", &[&result.output, &result.logsumexp]);
        let (output, logsumexp) = (&result.output, &result.logsumexp);
        let gradients =
            attention::backward(&in_place, &saved.qkv, output, logsumexp, heads, masks, false).unwrap();
        self.after("attention.backward masked", &[&gradients.arrays()[0]]);
    }

    /// Returns the head's weight, its input and the gradient of its output.
    fn losses(&mut self, saved: &Saved) -> (Tensor, Tensor, Tensor) {
        let Sizes { width, vocab, .. } = *self.sizes;
        let Saved { tokens, x, sum, .. } = saved;
        let added = add::forward(x, sum).unwrap();
        self.after("add.forward", &[&added]);
        add::into(&added, sum).unwrap();
        self.after("add.into", &[&added]);
        scale::in_place(&added, 0.7).unwrap();
        self.after("scale.in_place", &[&added]);

        let head = self.make("head", &[vocab, width]);
        let logits = linear::forward(&added, &head, None, Activation::None).unwrap().output;
        let loss = cross_entropy::forward(logits.clone(), tokens, 0.5, false).unwrap().loss;
        self.after("cross_entropy.forward", &[&loss]);
        let apart = cross_entropy::forward(logits.clone(), tokens, 0.5, true).unwrap();
        self.after("cross_entropy.forward apart", &[&apart.loss, apart.gradient.as_ref().unwrap()]);
        let in_place = cross_entropy::forward(logits, tokens, 0.5, true).unwrap();
        self.after("cross_entropy.forward in place", &[&in_place.loss]);
        self.after("mse", &[&mse::forward(x, sum, 0.5).unwrap(), &mse::backward(x, sum, 0.5).unwrap()]);

        (head, added, in_place.gradient.unwrap())
    }

    fn backward(&mut self, saved: &Saved, head: &Tensor, added: &Tensor, dlogits: &Tensor) -> Tensor {
        let Sizes { time, width, heads, vocab, .. } = *self.sizes;
        let Saved { tokens, gamma, qkv, mixed, sum, second, .. } = saved;
        let dx = linear::backward_input(dlogits, head).unwrap();
        self.after("linear.backward_input", &[&dx]);
        for accumulate in [false, true] {
            let (dweight, dbias) =
                (self.target("dw", &[vocab, width], accumulate), self.target("db", &[vocab], accumulate));
            linear::backward_weight(dlogits, added, &dweight, Some(&dbias)).unwrap();
            self.after("linear.backward_weight", &[&dweight.tensor, &dbias.tensor]);
            let (dgamma, dbeta) =
                (self.target("dg", &[width], accumulate), self.target("db", &[width], accumulate));
            layer_norm::backward_weight(&dx, sum, &second.mean, &second.rstd, &dgamma, Some(&dbeta)).unwrap();
            self.after("layer_norm.backward_weight", &[&dgamma.tensor, &dbeta.tensor]);
            let (dtable, dpositions) = (
                self.target("dt", &[vocab, width], accumulate),
                self.target("dp", &[time + 3, width], accumulate),
            );
            embedding::backward_weight(&dx, tokens, &dtable, Some(&dpositions)).unwrap();
            self.after("embedding.backward_weight", &[&dtable.tensor, &dpositions.tensor]);
            embedding::backward_weight(&dx, tokens, &dtable, None).unwrap();
            self.after("embedding.backward_weight without positions", &[&dtable.tensor]);
            let dsum = accumulate.then_some(&dx);
            let dsum =
                layer_norm::backward_input(&dx, dsum, sum, gamma, &second.mean, &second.rstd, false).unwrap();
            self.after("layer_norm.backward_input", &[&dsum]);
        }
        let heads = Heads::multi(heads, width / heads);
        let dqkv =
            attention::backward(&dx, qkv, &mixed.output, &mixed.logsumexp, heads, Masks::default(), false)
                .unwrap();
        self.after("attention.backward", &[&dqkv.arrays()[0]]);
        self.grouped(&dx);
        dqkv.into_vec().remove(0)
    }

    /// Attention with one key and value head and separate operands.
    fn grouped(&mut self, dy: &Tensor) {
        let Sizes { batch, time, width, heads, .. } = *self.sizes;
        let heads = Heads::grouped(heads, 1, width / heads);
        let of = |name, columns| self.make(name, &[batch, time, columns]);
        let (queries, keys, values) = (of("q", width), of("k", heads.width), of("v", heads.width));
        let qkv = Qkv::Separate([queries, keys, values]);
        let result = attention::forward(&qkv, heads, Masks::default(), false).unwrap();
        self.after("attention.forward grouped", &[&result.output, &result.logsumexp]);
        let gradients =
            attention::backward(dy, &qkv, &result.output, &result.logsumexp, heads, Masks::default(), false)
                .unwrap();
        self.after("attention.backward grouped", &gradients.arrays().iter().collect::<Vec<_>>());
    }

    fn update(&mut self, dqkv: &Tensor, head: &Tensor) {
        let Sizes { width, vocab, .. } = *self.sizes;
        let shape = [vocab, width];
        let gradient = |name: &str, shape: &[usize]| self.make_as(self.sizes.gradients, name, shape);
        let gradients = [gradient("dtable", &shape), gradient("dqkv", &[dqkv.elements()])];
        let chunks = gradients.each_ref().map(|gradient| norm::chunks(gradient.elements()));
        let sums = self.make_f32("sums", &[chunks.iter().sum()]);
        let state = StepState::new(self.device).unwrap();
        norm::chunk_sums(&gradients[0], &sums.view(0, [chunks[0]]).unwrap()).unwrap();
        norm::finish(&sums, 1.0, &state).unwrap();
        self.after("norm", &[&sums, state.tensor()]);
        let table = Table::of_gradients(self.device, gradients.len()).unwrap();
        norm::measure(&table, &gradients, &sums, 1.0, &state).unwrap();
        self.after("norm.measure", &[&sums, state.tensor()]);

        let (weight, gradient) = (self.make_f32("table", &shape), &gradients[0]);
        let (first, second) = (self.make_f32("m", &shape), self.make_f32("v", &shape));
        fill::constant(&second, 0.25).unwrap();
        let compute = (self.sizes.dtype != DType::F32).then_some(head);
        if let Some(compute) = compute {
            cast::into(&weight, compute).unwrap();
            self.after("cast.into", &[compute]);
        }
        state.set_learning_rate(1e-3).unwrap();
        state.set_updates(1).unwrap();
        let states = [first, second];
        let table = Table::of_parameters(self.device, 1).unwrap();
        let adamw = UpdateRule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
        let sgd = UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.1 };
        for (name, rule) in [("adamw.step", adamw), ("sgd.step", sgd)] {
            let states = &states[..rule.states().len()];
            let item = Item {
                weight: &weight,
                gradient,
                states,
                maxima: &[],
                compute,
                decay: true,
                stream: Stream::default(),
            };
            optimizer::begin(&rule, &state).unwrap();
            optimizer::update(&table, &rule, &[item], &state).unwrap();
            self.after(name, &[&weight, &states[0], head, state.tensor()]);
        }
        random::normal(&weight, 1, "table", 0.0, 0.02).unwrap();
        random::uniform(head, 1, "head", -1.0, 1.0).unwrap();
        self.after("random", &[&weight, head]);
    }
}
