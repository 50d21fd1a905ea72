//! One call of every general operator, and of the loss in pieces.

use device::{Category, Device};
use tensor::ops::latent_qkv::{self, LatentHeads};
use tensor::ops::linear_cross_entropy::{self, Operands, Settings};
use tensor::ops::matmul::{Factor, product};
use tensor::ops::pointwise::{self, Pair, Pointwise};
use tensor::ops::preference::{self, Objective, Sequences};
use tensor::ops::reduce::{self, Reduction};
use tensor::ops::{GradientTarget, fill, rearrange, softmax};
use tensor::{DType, Tensor};

use crate::scenario::{Sizes, make};
use crate::support::{indices, tensor};

const FUNCTIONS: [Pointwise; 9] = [
    Pointwise::Exp,
    Pointwise::Log,
    Pointwise::Sqrt,
    Pointwise::Reciprocal,
    Pointwise::Square,
    Pointwise::Tanh,
    Pointwise::Scale(-1.5),
    Pointwise::Shift(0.25),
    Pointwise::SoftCap(2.0),
];

/// Calls `after(operator, results)` after each call.
pub(crate) fn every_general_operator(
    device: &Device,
    sizes: &Sizes,
    after: &mut dyn FnMut(&'static str, &[&Tensor]),
) {
    let shape = [sizes.batch, sizes.time, sizes.width];
    let [x, y] = ["x", "y"].map(|name| make(device, sizes.dtype, name, &shape));
    // Positive, so that all functions are defined, and small, so that all results are finite.
    let small = pointwise::forward(&x, Pointwise::Scale(0.5)).unwrap();
    let positive = pointwise::forward(&small, Pointwise::Exp).unwrap();
    for function in FUNCTIONS {
        let output = pointwise::forward(&positive, function).unwrap();
        after("pointwise.forward", &[&output]);
        after("pointwise.backward", &[&pointwise::backward(&y, &positive, function).unwrap()]);
    }
    let (query, key_value) = (3, 2);
    let heads = LatentHeads { query, key_value, rotated: 4, plain: 6, value_width: 5, interleaved: true };
    let operand = |columns: usize| make(device, sizes.dtype, "heads", &[sizes.batch, sizes.time, columns]);
    let operands = heads.columns().map(operand);
    let packed = latent_qkv::forward(operands.each_ref(), heads).unwrap();
    after("latent_qkv.forward", &[&packed]);
    let [queries, keys_values, rotated] = latent_qkv::backward(&packed, heads).unwrap();
    after("latent_qkv.backward", &[&queries, &keys_values, &rotated]);
    let row = make(device, sizes.dtype, "row", &[1, 1, sizes.width]);
    for function in [Pair::Add, Pair::Subtract, Pair::Multiply] {
        after("pointwise.pair", &[&pointwise::pair(&x, &y, function).unwrap()]);
        after("pointwise.pair repeated", &[&pointwise::pair(&row, &y, function).unwrap()]);
    }
    after("pointwise.pair divided", &[&pointwise::pair(&y, &positive, Pair::Divide).unwrap()]);
    for axis in 0..3 {
        after("reduce.forward sum", &[&reduce::forward(&x, axis, Reduction::Sum).unwrap()]);
        let largest = reduce::forward(&x, axis, Reduction::Maximum).unwrap();
        after("reduce.forward maximum", &[&largest]);
        let back = reduce::backward_maximum(&largest, &x, &largest, axis).unwrap();
        after("reduce.backward_maximum", &[&back]);
        let part = rearrange::slice(&x, axis, 1, shape[axis] / 2).unwrap();
        after("rearrange.slice", &[&part]);
        let back = rearrange::slice_backward(&part, shape.into(), axis, 1).unwrap();
        after("rearrange.slice_backward", &[&back]);
        after("rearrange.concatenate", &[&rearrange::concatenate(&[&part, &x], axis).unwrap()]);
        after("rearrange.repeat", &[&rearrange::repeat(&largest, shape.into()).unwrap()]);
        after("rearrange.transpose", &[&rearrange::transpose(&x, axis, (axis + 1) % 3).unwrap()]);
    }
    let output = softmax::forward(&x).unwrap();
    after("softmax.forward", &[&output]);
    after("softmax.backward", &[&softmax::backward(&y, &output).unwrap()]);
    let scores = product(Factor::plain(&x), Factor::transposed(&y), Category::Activation).unwrap();
    after("matmul.product", &[&scores]);
    let mixed = product(Factor::plain(&scores), Factor::plain(&y), Category::Activation).unwrap();
    after("matmul.product again", &[&mixed]);
    loss_in_pieces(device, sizes, x, after);
}

fn loss_in_pieces(
    device: &Device,
    sizes: &Sizes,
    x: Tensor,
    after: &mut dyn FnMut(&'static str, &[&Tensor]),
) {
    let Sizes { batch, time, width, vocab, .. } = *sizes;
    let targets = tensor(device, &indices("targets", batch * time, vocab), [batch, time]);
    let operands = Operands { x, weight: make(device, sizes.dtype, "head", &[vocab, width]), targets };
    let settings = Settings { scale: 0.5, soft_cap: Some(10.0), pieces: 3 };
    let result = linear_cross_entropy::forward(&operands, &settings, None).unwrap();
    after("linear_cross_entropy.forward", &[&result.loss, &result.statistics.rows]);
    let factor = tensor(device, &[0.0_f32], [1]);
    fill::constant(&factor, 1.0).unwrap();
    let back = |input, target: Option<&GradientTarget>| {
        let statistics = &result.statistics;
        linear_cross_entropy::backward(&operands, statistics, &settings, &factor, input, target).unwrap()
    };
    for accumulate in [false, true] {
        let tensor = make(device, sizes.gradients, "dhead", &[vocab, width]);
        let target = GradientTarget { tensor, accumulate };
        after("linear_cross_entropy.backward", &[&back(true, Some(&target)).unwrap(), &target.tensor]);
    }
    after("linear_cross_entropy.backward input", &[&back(true, None).unwrap()]);
    preferences(device, sizes, after);
}

/// The loss of a pair of answers, and their scores.
fn preferences(device: &Device, sizes: &Sizes, after: &mut dyn FnMut(&'static str, &[&Tensor])) {
    let rows = 2 * sizes.time;
    let losses = make(device, DType::F32, "row losses", &[rows]);
    let targets = tensor(device, &indices("row targets", rows, sizes.vocab), [rows]);
    let answers = tensor(device, &[1_u32, 3], [2]);
    let sequences = Sequences { losses: &losses, targets: &targets, answers: &answers };
    after("preference.scores", &[&preference::scores(sequences).unwrap()]);
    let objective = Objective::Dpo { beta: 0.1, label_smoothing: 0.1 };
    let reference = make(device, DType::F32, "reference", &[2]);
    let output = preference::forward(sequences, Some(&reference), objective, 1.0, None).unwrap();
    after("preference.forward", &[&output.values, &output.weights]);
}
